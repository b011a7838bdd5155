"""Each source of a topology, and what it refuses."""

from __future__ import annotations

import io
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines import DATA, SWITCHED, epyc_two_sockets, machine, write_sysfs_cpus

from takt.parallel.cpu_list import format_cpu_list, parse_cpu_list
from takt.parallel.cpu_topology import read_cpu_topology
from takt.parallel.topology.accelerators import Accelerators, Level
from takt.parallel.topology.discover import topology_from_file
from takt.parallel.topology.errors import TopologyError
from takt.parallel.topology.graph import Device, VertexKind
from takt.parallel.topology.nvidia_smi import accelerators_from_text
from takt.parallel.topology.nvml import accelerators_from_nvml
from takt.parallel.topology.pci import accelerators_from_pci, pci_accelerators

GB = 1e9


def text_of(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def test_nvidia_smi_text_gives_links_nodes_and_cpus() -> None:
    topology = machine("dgx1_v100")
    gb_s = [[b / GB for b in row] for row in topology.bandwidths()]
    assert gb_s[0][1:5] == [25, 25, 50, 50]
    assert gb_s[0][5:] == [10, 10, 10], "no relay through other GPUs"
    assert topology.labels()[0] == ["X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"]
    l40s = machine("l40s_two_sockets")
    assert l40s.labels()[0] == ["X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert [d.numa_node for d in l40s.devices] == [0] * 4 + [1] * 4
    assert l40s.devices[4].cpus == (*range(32, 64), *range(96, 128))


@pytest.mark.parametrize(("name", "links"), [("dgx_a100", 12), ("dgx_h100", 18)])
def test_more_links_than_a_device_has_mean_a_switch(name: str, links: int) -> None:
    topology = machine(name)
    switches = [v for v in topology.vertices if v.kind is VertexKind.NVSWITCH]
    assert len(switches) == 1
    assert {b for row in topology.bandwidths() for b in row} == {links * 25 * GB, float("inf")}
    for other in ("dgx1_v100", "a100_nvlink_pairs"):
        assert VertexKind.NVSWITCH not in {v.kind for v in machine(other).vertices}


def test_coloured_text_and_blanks_for_tabs_read_the_same() -> None:
    text = text_of("dgx_h100")
    coloured = text.replace("\tGPU0", "\x1b[4m\tGPU0").replace(
        "CPU Affinity", "CPU Affinity\x1b[0m"
    )
    assert accelerators_from_text(coloured, "a") == accelerators_from_text(text, "a")
    blanks = text.replace("\t", "   ")
    assert accelerators_from_text(blanks, "a") == accelerators_from_text(text, "a")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: "nothing here", "no line begins the matrix"),
        (lambda t: t.replace("GPU5\t", "GPX5\t", 2).replace("GPX5", "GPU5", 1), "has no line"),
        (lambda t: t.replace("NV2", "ZZ2", 1), "'ZZ2'; known: PIX"),
        (lambda t: t.replace("NV2", "NV1", 1), "disagree"),
        (lambda t: t.replace(" X ", "PIX", 1), "diagonal"),
        (lambda t: t.replace("GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS", "GPU0\tX"), "too few"),
        (lambda t: t.replace("NV2", "NV" + "2" * 5000), "known: PIX"),
        (lambda t: t.replace("NV2", "NV" + "2" * 400), "known: PIX"),
        (lambda t: t.replace("GPU7", "GPU6"), "same name"),
        (lambda t: t.replace("0-19", "0-19999999999"), "the CPUs of GPU0: '0-19999999999' is no"),
        (lambda t: t.replace("0-19", "0-"), "is no CPU and no range"),
        (lambda t: t.replace("0-19", "19-0"), "is no CPU and no range"),
        (lambda t: t.replace("0-19", "1-2-3"), "is no CPU and no range"),
    ],
)
def test_text_that_makes_no_sense_is_refused(edit: Callable[[str], str], message: str) -> None:
    with pytest.raises(TopologyError, match=message) as error:
        accelerators_from_text(edit(text_of("dgx1_v100")), "some.txt")
    assert str(error.value).startswith("some.txt: ")


@pytest.mark.parametrize("node", ["²", "1" * 5000, "N/A"])
def test_what_is_no_numa_node_is_none(node: str) -> None:
    text = f"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\tX\t0-3\t{node}\n"
    (device,) = accelerators_from_text(text, "a").devices
    assert device.numa_node is None


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TopologyError, match="cannot be read: No such file"):
        topology_from_file(str(tmp_path / "none.txt"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="it is no text"):
        topology_from_file(str(tmp_path / "binary"))
    monkeypatch.setattr("sys.stdin", io.StringIO(text_of("dgx_a100")))
    assert topology_from_file("-").num_devices == 8


def test_levels_become_a_tree() -> None:
    """Two pairs on bridges, one host bridge, and a fifth device on another socket."""
    levels = [
        [
            None
            if a == b
            else Level.SYS
            if 4 in (a, b)
            else Level.PIX
            if a // 2 == b // 2
            else Level.PHB
            for b in range(5)
        ]
        for a in range(5)
    ]
    devices = tuple(Device(f"GPU{i}", numa_node=i // 4) for i in range(5))
    topology = Accelerators("t", devices, levels, [[0] * 5] * 5).topology()
    kinds = [v.kind for v in topology.vertices[5:]]
    assert kinds == [
        VertexKind.BRIDGE,
        VertexKind.BRIDGE,
        VertexKind.HOST_BRIDGE,
        VertexKind.MACHINE,
    ]
    labels = topology.labels()
    assert labels[0][1:] == ["PIX", "PHB", "PHB", "SYS"]


def test_l3_domains_of_two_sockets() -> None:
    cpus = epyc_two_sockets()
    assert len(cpus.l3_domains()) == 8
    topology = machine("epyc_two_sockets")
    assert topology.devices[1].cpus == (4, 5, 6, 7, 36, 37, 38, 39)
    assert [d.numa_node for d in topology.devices] == [0, 0, 1, 1, 2, 2, 3, 3]
    bandwidths = topology.bandwidths()
    local = bandwidths[0][1]
    assert bandwidths[0][2] == pytest.approx(local * 10 / 12)
    assert bandwidths[0][4] == bandwidths[3][7] == pytest.approx(local * 10 / 32)


def test_only_allowed_cpus_count_and_missing_files_count_as_one_node(tmp_path: Path) -> None:
    write_sysfs_cpus(tmp_path, sockets=1, nodes_per_socket=1, l3_per_node=2, cores_per_l3=2)
    cpus = read_cpu_topology(tmp_path, [1, 2])
    assert [(node, [c.number for c in members]) for node, members in cpus.l3_domains()] == [
        (0, [1]),
        (0, [2]),
    ]
    bare = read_cpu_topology(tmp_path / "nothing", [0, 5])
    assert [len(members) for _, members in bare.l3_domains()] == [2]
    assert {c.core for c in bare.cpus} == {(0, 0), (0, 5)}


def test_this_machine_can_be_read() -> None:
    cpus = read_cpu_topology()
    assert cpus.cpus
    assert sum(len(members) for _, members in cpus.l3_domains()) == len(cpus.cpus)


def test_cpu_lists_are_written_as_they_are_read() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert format_cpu_list((11, 10, 8, 3, 2, 1, 0)) == "0-3,8,10-11"
    for text in ("²", "1" * 5000, "0-65536", "-1", "a"):
        with pytest.raises(ValueError, match="is no CPU"):
            parse_cpu_list(text)
    assert parse_cpu_list("") == () and format_cpu_list(()) == ""


def write_pci(root: Path, chain: str, vendor: str = "0x10de", node: int = 0) -> None:
    path = root / "devices" / chain
    path.mkdir(parents=True)
    for name, value in (
        ("vendor", vendor),
        ("class", "0x030200"),
        ("numa_node", node),
        ("local_cpulist", "0-3"),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("max_link_width", 16),
    ):
        (path / name).write_text(f"{value}\n")
    links = root / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / path.name).symlink_to(path)


def test_the_pcie_tree_gives_levels(tmp_path: Path) -> None:
    switch = "pci0000:40/0000:40:01.1/0000:41:00.0"
    write_pci(tmp_path, f"{switch}/0000:42:00.0/0000:43:00.0")
    write_pci(tmp_path, f"{switch}/0000:42:01.0/0000:44:00.0")
    write_pci(tmp_path, f"{switch}/0000:42:02.0/0000:45:00.0/0000:46:00.0/0000:47:00.0")
    write_pci(tmp_path, "pci0000:40/0000:40:03.1/0000:48:00.0")
    write_pci(tmp_path, "pci0000:60/0000:60:01.1/0000:61:00.0")
    write_pci(tmp_path, "pci0000:c0/0000:c0:01.1/0000:c1:00.0", node=1)
    write_pci(tmp_path, "pci0000:c0/0000:c0:02.1/0000:c2:00.0", vendor="0x8086", node=1)
    devices = pci_accelerators(tmp_path)
    assert [d.address for d in devices][-1] == "0000:c1:00.0", "other vendors are left out"
    topology = accelerators_from_pci(devices).topology()
    assert topology.labels()[0] == ["X", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert topology.bandwidths()[0][1] == 32 * GB
    assert topology.devices[5].numa_node == 1 and topology.devices[5].cpus == (0, 1, 2, 3)


class FakeNvml(types.SimpleNamespace):
    """Four devices: 0-1 and 2-3 by four links each, all four by two links into a switch."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, has_driver: bool = True) -> None:
        super().__init__(is_open=False)
        self.has_driver = has_driver

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise self.NVMLError
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA Test"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return types.SimpleNamespace(busId=f"00000000:4{handle}:00.0".encode())

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        return 20 if a // 2 == b // 2 else 50

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 12:
            raise self.NVMLError
        return int(link < 6)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if link >= 4 else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return self.nvmlDeviceGetPciInfo(handle ^ 1)

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        return 5


def test_nvml_gives_links_levels_and_generation(tmp_path: Path) -> None:
    write_pci(tmp_path, "pci0000:00/0000:43:00.0", node=1)
    library = FakeNvml()
    found = accelerators_from_nvml(tmp_path, library)
    assert found is not None and not library.is_open
    assert found.num_nvlinks[0] == [0, 6, 2, 2]
    assert found.nvlink_bytes_s == 50 * GB
    assert found.levels[0] == [None, Level.PXB, Level.SYS, Level.SYS]
    assert [d.numa_node for d in found.devices] == [None, None, None, 1]
    assert found.devices[0].detail == "NVIDIA Test"
    assert found.topology().labels()[0] == ["X", "NV6", "NV2", "NV2"]


def test_nvml_without_driver_or_package_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accelerators_from_nvml(library=FakeNvml(has_driver=False)) is None
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert accelerators_from_nvml() is None


def test_fixtures_are_all_read() -> None:
    assert {p.stem for p in DATA.glob("*.txt")} == {
        *SWITCHED,
        "dgx1_v100",
        "a100_nvlink_pairs",
        "l40s_two_sockets",
    }
