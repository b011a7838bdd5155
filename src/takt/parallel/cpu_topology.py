"""CPUs by core, L3 cache and NUMA node, as the kernel's sysfs tells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from takt.parallel.cpu_list import format_cpu_list, parse_cpu_list

SYSFS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Cpu:
    number: int
    core: tuple[int, int]
    """Package and core in it; hardware threads of one core share it."""
    l3: str
    """CPUs of the same L3 cache, as a list."""
    numa_node: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The CPUs that this process may use, and distances between their NUMA nodes (10 is local)."""

    cpus: tuple[Cpu, ...]
    distances: Mapping[int, Mapping[int, int]]

    def l3_domains(self) -> list[tuple[int, tuple[Cpu, ...]]]:
        """NUMA node and CPUs of each L3 cache, by node. A cache that spans nodes counts in each."""
        domains: dict[tuple[int, str], list[Cpu]] = {}
        for cpu in self.cpus:
            domains.setdefault((cpu.numa_node, cpu.l3), []).append(cpu)
        ordered = sorted(domains.items(), key=lambda item: (item[0][0], item[1][0].number))
        return [(node, tuple(cpus)) for (node, _), cpus in ordered]


def read_cpu_topology(root: Path = SYSFS, allowed: Iterable[int] | None = None) -> CpuTopology:
    """Reads sysfs below `root`; `allowed` is the affinity mask if None.

    What the kernel does not tell (a machine without NUMA, a container that hides caches) counts as
    one: one node, one cache per package, one core per CPU.
    """
    numbers = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    nodes = _nodes(root)
    cpus = []
    for number in numbers:
        directory = root / "devices/system/cpu" / f"cpu{number}"
        package = _number(directory / "topology/physical_package_id", 0)
        core = _number(directory / "topology/core_id", number)
        l3 = _l3(directory / "cache") or f"package {package}"
        cpus.append(Cpu(number, (package, core), l3, nodes.get(number, 0)))
    return CpuTopology(tuple(cpus), _distances(root, {cpu.numa_node for cpu in cpus}))


def _nodes(root: Path) -> dict[int, int]:
    found = {}
    for directory in (root / "devices/system/node").glob("node[0-9]*"):
        for cpu in parse_cpu_list(_text(directory / "cpulist") or ""):
            found[cpu] = int(directory.name[4:])
    return found


def _distances(root: Path, nodes: set[int]) -> dict[int, dict[int, int]]:
    directory = root / "devices/system/node"
    online = parse_cpu_list(_text(directory / "online") or "")
    table: dict[int, dict[int, int]] = {}
    for node in sorted(nodes):
        values = [int(v) for v in (_text(directory / f"node{node}" / "distance") or "").split()]
        known = dict(zip(online, values, strict=False))
        table[node] = {o: known.get(o, 10 if o == node else 20) for o in sorted(nodes)}
    return table


def _l3(caches: Path) -> str | None:
    for index in sorted(caches.glob("index[0-9]*")):
        if _text(index / "level") == "3":
            shared = _text(index / "shared_cpu_list")
            return format_cpu_list(parse_cpu_list(shared)) if shared else None
    return None


def _number(path: Path, default: int) -> int:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else default


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
