"""Machines that topology tests run on: texts of nvidia-smi, and a sysfs tree made to order."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from takt.parallel.cpu_list import format_cpu_list
from takt.parallel.cpu_topology import CpuTopology, read_cpu_topology
from takt.parallel.topology.cpus import cpu_device_topology
from takt.parallel.topology.discover import topology_from_file
from takt.parallel.topology.graph import Topology

DATA = Path(__file__).parent / "data"

SWITCHED = ("dgx_a100", "dgx_h100")
"""Every pair of devices is as good as any other."""
UNEVEN = ("dgx1_v100", "a100_nvlink_pairs", "l40s_two_sockets", "epyc_two_sockets")


@functools.cache
def machine(name: str) -> Topology:
    if name == "epyc_two_sockets":
        return cpu_device_topology(epyc_two_sockets())
    return topology_from_file(str(DATA / f"{name}.txt"))


@functools.cache
def epyc_two_sockets() -> CpuTopology:
    """Two sockets of four L3 domains with four cores each, two NUMA nodes a socket (NPS2)."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_sysfs_cpus(root, sockets=2, nodes_per_socket=2, l3_per_node=2, cores_per_l3=4)
        return read_cpu_topology(root, range(64))


def write_sysfs_cpus(
    root: Path, *, sockets: int, nodes_per_socket: int, l3_per_node: int, cores_per_l3: int
) -> None:
    """Two hardware threads a core, numbered as Linux does: all first ones, then all second ones."""
    num_nodes = sockets * nodes_per_socket
    num_cores = num_nodes * l3_per_node * cores_per_l3
    cpus_of_node: dict[int, list[int]] = {node: [] for node in range(num_nodes)}
    for cpu in range(2 * num_cores):
        core = cpu % num_cores
        domain = core // cores_per_l3
        node = domain // l3_per_node
        cpus_of_node[node].append(cpu)
        first = domain * cores_per_l3
        cores = range(first, first + cores_per_l3)
        shared = format_cpu_list([*cores, *(core + num_cores for core in cores)])
        directory = root / f"devices/system/cpu/cpu{cpu}"
        _write(directory / "topology/physical_package_id", node // nodes_per_socket)
        _write(directory / "topology/core_id", core)
        for index, (level, list_) in enumerate(
            [(1, f"{core},{core + num_cores}"), (2, f"{core},{core + num_cores}"), (3, shared)]
        ):
            _write(directory / f"cache/index{index}/level", level)
            _write(directory / f"cache/index{index}/shared_cpu_list", list_)
    nodes = root / "devices/system/node"
    _write(nodes / "online", f"0-{num_nodes - 1}")
    for a in range(num_nodes):
        distances = [
            10 if a == b else 12 if a // nodes_per_socket == b // nodes_per_socket else 32
            for b in range(num_nodes)
        ]
        _write(nodes / f"node{a}/distance", " ".join(str(d) for d in distances))
        _write(nodes / f"node{a}/cpulist", format_cpu_list(cpus_of_node[a]))


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
