"""The devices of this machine, from the best source that it has."""

from __future__ import annotations

import sys
from pathlib import Path

from takt.parallel.cpu_topology import read_cpu_topology
from takt.parallel.topology.cpus import cpu_device_topology
from takt.parallel.topology.errors import TopologyError
from takt.parallel.topology.graph import Topology
from takt.parallel.topology.nvidia_smi import accelerators_from_text, nvidia_smi_text
from takt.parallel.topology.nvml import accelerators_from_nvml
from takt.parallel.topology.pci import accelerators_from_pci, pci_accelerators


def discover_topology() -> Topology:
    """NVML, else `nvidia-smi`, else GPUs on the PCIe tree, else the CPUs' L3 domains."""
    found = accelerators_from_nvml()
    if found is not None:
        return found.topology()
    text = nvidia_smi_text()
    if text is not None:
        return accelerators_from_text(text, "nvidia-smi topo -m").topology()
    devices = pci_accelerators()
    if devices:
        return accelerators_from_pci(devices).topology()
    return cpu_device_topology(read_cpu_topology())


def topology_from_file(path: str) -> Topology:
    """Text of `nvidia-smi topo -m`; `-` is standard input. Raises `TopologyError`."""
    if path == "-":
        return accelerators_from_text(sys.stdin.read(), "standard input").topology()
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise TopologyError(f"{path} cannot be read: {reason}") from error
    return accelerators_from_text(text, path).topology()
