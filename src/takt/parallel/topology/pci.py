"""Accelerators on the PCIe tree, from sysfs: chains of bridges up to the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from takt.parallel.cpu_list import parse_cpu_list
from takt.parallel.topology.accelerators import (
    DEFAULT_PCIE_GENERATION,
    PCIE_BYTES_S,
    Accelerators,
    Level,
)
from takt.parallel.topology.graph import Device

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_ACCELERATOR_CLASSES = ("0x0302", "0x0300", "0x0380", "0x1200")
"""3D and VGA controllers, other displays, processing accelerators."""
_GENERATION_OF_SPEED = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_FULL_WIDTH = 16


@dataclass(frozen=True, slots=True)
class PciDevice:
    address: str
    vendor: str
    chain: tuple[str, ...]
    """Root complex, then bridges, then the device itself, from the top."""
    numa_node: int | None
    cpus: tuple[int, ...]
    link_bytes_s: float | None
    """The most that device and slot agree on, one direction."""


def pci_accelerators(root: Path = Path("/sys")) -> list[PciDevice]:
    """GPUs of the vendors that serve models, by address."""
    found = []
    for entry in sorted((root / "bus/pci/devices").glob("*")):
        vendor = _VENDORS.get(_text(entry / "vendor"))
        if vendor and _text(entry / "class").startswith(_ACCELERATOR_CLASSES):
            found.append(pci_device(entry, vendor))
    return found


def pci_device(entry: Path, vendor: str) -> PciDevice:
    """`entry` is the device's link or directory in sysfs."""
    path = entry.resolve()
    chain = [part for part in path.parts if part.startswith("pci") or _ADDRESS.fullmatch(part)]
    node = _text(entry / "numa_node")
    return PciDevice(
        address=entry.name,
        vendor=vendor,
        chain=tuple(chain),
        numa_node=int(node) if node.isdigit() else None,
        cpus=parse_cpu_list(_text(entry / "local_cpulist")),
        link_bytes_s=_link_bytes_s(entry),
    )


def pci_level(a: PciDevice, b: PciDevice) -> Level:
    """Where two chains part."""
    shared = 0
    for one, other in zip(a.chain[:-1], b.chain[:-1], strict=False):
        if one != other:
            break
        shared += 1
    if shared == 0:
        return Level.NODE if a.numa_node == b.numa_node else Level.SYS
    # The root complex alone is the CPU's: each device has a root port of its own.
    if shared == 1:
        return Level.PHB
    # Below the last shared bridge each has its own port of the switch and itself; more is another
    # switch in between.
    further = max(len(a.chain), len(b.chain)) - shared
    return Level.PIX if further <= 2 else Level.PXB


def accelerators_from_pci(
    devices: Sequence[PciDevice], num_nvlinks: Sequence[Sequence[int]] | None = None
) -> Accelerators:
    count = len(devices)
    links = [device.link_bytes_s for device in devices if device.link_bytes_s]
    return Accelerators(
        title="PCIe tree",
        devices=tuple(
            Device(f"GPU{i}", f"{d.vendor} {d.address}", d.numa_node, d.cpus)
            for i, d in enumerate(devices)
        ),
        levels=[[None if a is b else pci_level(a, b) for b in devices] for a in devices],
        num_nvlinks=num_nvlinks or [[0] * count for _ in range(count)],
        pcie_bytes_s=min(links, default=PCIE_BYTES_S[DEFAULT_PCIE_GENERATION]),
    )


def _link_bytes_s(entry: Path) -> float | None:
    """The device's fastest link; the present one may be slow while the device sleeps."""
    speed = _text(entry / "max_link_speed").split(" ")[0]
    width = _text(entry / "max_link_width")
    generation = _GENERATION_OF_SPEED.get(speed)
    if generation is None or not width.isdigit() or not 0 < int(width) <= _FULL_WIDTH:
        return None
    return PCIE_BYTES_S[generation] * int(width) / _FULL_WIDTH


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
