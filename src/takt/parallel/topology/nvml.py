"""Accelerators from NVML, NVIDIA's management library (package nvidia-ml-py, optional)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from takt.parallel.cpu_list import parse_cpu_list
from takt.parallel.topology.accelerators import (
    DEFAULT_NVLINK_BYTES_S,
    DEFAULT_PCIE_GENERATION,
    NVLINK_BYTES_S,
    PCIE_BYTES_S,
    Accelerators,
    Level,
)
from takt.parallel.topology.graph import Device

_LEVEL_OF_ANCESTOR = {
    0: Level.PIX,  # two devices on one board
    10: Level.PIX,
    20: Level.PXB,
    30: Level.PHB,
    40: Level.NODE,
    50: Level.SYS,
}
"""NVML's nvmlGpuTopologyLevel_t."""
_SWITCH = 2
"""NVML's NVML_NVLINK_DEVICE_TYPE_SWITCH."""
_MAX_LINKS = 18


def accelerators_from_nvml(root: Path = Path("/sys"), library: Any = None) -> Accelerators | None:
    """What the driver says, or None without the package, the driver or a device.

    `library` stands for the module pynvml.
    """
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    try:
        count = int(library.nvmlDeviceGetCount())
        return _Reader(library, root, count).accelerators() if count else None
    finally:
        library.nvmlShutdown()


class _Reader:
    def __init__(self, library: Any, root: Path, count: int) -> None:
        self._library = library
        self._root = root
        self._handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        self._addresses = [self._address(handle) for handle in self._handles]

    def accelerators(self) -> Accelerators:
        count = len(self._handles)
        generations = [self._ask("nvmlDeviceGetMaxPcieLinkGeneration", h) for h in self._handles]
        pcie = [PCIE_BYTES_S[g] for g in generations if g in PCIE_BYTES_S]
        return Accelerators(
            title="NVML",
            devices=tuple(self._device(i) for i in range(count)),
            levels=[[self._level(a, b) for b in range(count)] for a in range(count)],
            num_nvlinks=self._nvlink_counts(),
            pcie_bytes_s=min(pcie, default=PCIE_BYTES_S[DEFAULT_PCIE_GENERATION]),
            nvlink_bytes_s=self._nvlink_bytes_s(),
        )

    def _ask(self, function: str, *arguments: Any) -> Any:
        """None where the device or this version of the library has no answer."""
        call = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._library.NVMLError:
            return None

    def _address(self, handle: Any) -> str:
        return _pci_address(self._library.nvmlDeviceGetPciInfo(handle).busId)

    def _device(self, i: int) -> Device:
        name = self._ask("nvmlDeviceGetName", self._handles[i]) or ""
        directory = self._root / "bus/pci/devices" / self._addresses[i]
        node = _read(directory / "numa_node")
        return Device(
            name=f"GPU{i}",
            detail=_text(name),
            numa_node=int(node) if node.isdigit() else None,
            cpus=parse_cpu_list(_read(directory / "local_cpulist")),
        )

    def _level(self, a: int, b: int) -> Level | None:
        if a == b:
            return None
        ancestor = self._ask(
            "nvmlDeviceGetTopologyCommonAncestor", self._handles[a], self._handles[b]
        )
        return None if ancestor is None else _LEVEL_OF_ANCESTOR.get(int(ancestor))

    def _nvlink_counts(self) -> list[list[int]]:
        """Links between pairs; links into a switch count towards every other device on it."""
        count = len(self._handles)
        counts = [[0] * count for _ in range(count)]
        switched = [0] * count
        for a, handle in enumerate(self._handles):
            for link in range(_MAX_LINKS):
                if not self._ask("nvmlDeviceGetNvLinkState", handle, link):
                    continue
                if self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _SWITCH:
                    switched[a] += 1
                    continue
                remote = self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                if remote is not None and (b := self._index(remote.busId)) is not None:
                    counts[a][b] += 1
        for a in range(count):
            for b in range(count):
                if a != b:
                    counts[a][b] += min(switched[a], switched[b])
        return [[max(counts[a][b], counts[b][a]) for b in range(count)] for a in range(count)]

    def _index(self, bus_id: Any) -> int | None:
        address = _pci_address(bus_id)
        return self._addresses.index(address) if address in self._addresses else None

    def _nvlink_bytes_s(self) -> float:
        for handle in self._handles:
            version = self._ask("nvmlDeviceGetNvLinkVersion", handle, 0)
            if version in NVLINK_BYTES_S:
                return NVLINK_BYTES_S[version]
        return DEFAULT_NVLINK_BYTES_S


def _pci_address(bus_id: Any) -> str:
    """As sysfs has it: a domain of four digits, lower case."""
    domain, _, rest = _text(bus_id).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _text(value: Any) -> str:
    """Older versions of the library return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
