"""Accelerators from pairwise facts to the graph: PCIe levels become a tree, NVLinks edges."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from takt.parallel.topology.graph import Device, Edge, Topology, Vertex, VertexKind


class Level(enum.IntEnum):
    """How far up the PCIe tree two devices meet, in the words of `nvidia-smi topo -m`."""

    PIX = 1
    """At one bridge."""
    PXB = 2
    """Beyond several bridges, below the CPU."""
    PHB = 3
    """At a host bridge of the CPU."""
    NODE = 4
    """Between host bridges of a NUMA node."""
    SYS = 5
    """Across the link between NUMA nodes."""


PCIE_BYTES_S = {1: 4e9, 2: 8e9, 3: 16e9, 4: 32e9, 5: 64e9, 6: 128e9}
"""Sixteen lanes of each generation, one direction, before the protocol's share."""
DEFAULT_PCIE_GENERATION = 4
NVLINK_BYTES_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""One link of each generation, one direction (data sheets of P100 to B200)."""
DEFAULT_NVLINK_BYTES_S = 25e9
MOST_NVLINKS = 18
"""Links of a device; pairs that would need more share them through a switch."""

HOST_BRIDGE_SHARE = 0.75
"""Assumed share of a PCIe link that peers get through the CPU's host bridge, not a switch."""
NODE_SHARE = 0.6
"""Assumed, likewise, between two host bridges of one NUMA node."""
SYS_BYTES_S = 10e9
"""Copies between sockets, all together in one direction: the figure that NCCL's graph search
assumes for Intel's UPI. Orders matter for grouping, not digits."""


@dataclass(frozen=True, slots=True)
class Accelerators:
    """What a source tells about devices, in pairs; matrices are symmetric.

    `levels[a][b]` is None where the source names a faster link only.
    """

    title: str
    devices: tuple[Device, ...]
    levels: Sequence[Sequence[Level | None]]
    num_nvlinks: Sequence[Sequence[int]]
    pcie_bytes_s: float = PCIE_BYTES_S[DEFAULT_PCIE_GENERATION]
    nvlink_bytes_s: float = DEFAULT_NVLINK_BYTES_S

    def topology(self) -> Topology:
        vertices = [Vertex(device.name, VertexKind.DEVICE) for device in self.devices]
        edges = self._pcie_tree(vertices)
        edges += self._nvlinks(vertices)
        return Topology(self.title, self.devices, tuple(vertices), tuple(edges))

    def _level(self, a: int, b: int) -> Level:
        """Where a source hides the PCIe level behind NVLink: one node, or across nodes."""
        known = self.levels[a][b]
        if known is not None:
            return known
        one, other = self.devices[a], self.devices[b]
        if one.numa_node is not None and other.numa_node is not None:
            return Level.NODE if one.numa_node == other.numa_node else Level.SYS
        return Level.NODE if one.cpus and one.cpus == other.cpus else Level.SYS

    def _pcie_tree(self, vertices: list[Vertex]) -> list[Edge]:
        """Devices that meet at a level hang from one vertex of that level.

        `tops` are the vertices with nothing above them yet, each with the devices below it.
        """
        edges = []
        tops: dict[int, tuple[int, ...]] = {d: (d,) for d in range(len(self.devices))}
        for level in Level:
            merged: dict[int, tuple[int, ...]] = {}
            for group in self._meeting(list(tops.items()), level):
                if len(group) == 1:
                    merged[group[0]] = tops[group[0]]
                    continue
                vertex = len(vertices)
                members = tuple(sorted(d for top in group for d in tops[top]))
                vertices.append(Vertex(_vertex_name(level, self.devices, members), _KINDS[level]))
                edges += [Edge(top, vertex, self._tree_bytes_s(level), level.name) for top in group]
                merged[vertex] = members
            tops = merged
        return edges

    def _meeting(self, tops: list[tuple[int, tuple[int, ...]]], level: Level) -> list[list[int]]:
        """Vertices whose devices meet at or below a level, in groups."""
        groups: list[tuple[list[int], list[int]]] = []
        for top, members in tops:
            near = [
                g for g in groups if any(self._level(a, b) <= level for a in members for b in g[1])
            ]
            joined = (
                [v for g in near for v in g[0]] + [top],
                [d for g in near for d in g[1]] + list(members),
            )
            groups = [g for g in groups if g not in near] + [joined]
        return [vertices for vertices, _ in groups]

    def _tree_bytes_s(self, level: Level) -> float:
        if level <= Level.PXB:
            return self.pcie_bytes_s
        if level is Level.PHB:
            return HOST_BRIDGE_SHARE * self.pcie_bytes_s
        if level is Level.NODE:
            return NODE_SHARE * self.pcie_bytes_s
        return min(SYS_BYTES_S, NODE_SHARE * self.pcie_bytes_s)

    def _nvlinks(self, vertices: list[Vertex]) -> list[Edge]:
        counts, devices = self.num_nvlinks, range(len(self.devices))
        switched = [a for a in devices if sum(counts[a]) > MOST_NVLINKS]
        edges = []
        if switched:
            switch = len(vertices)
            vertices.append(Vertex("NVSwitch", VertexKind.NVSWITCH))
            for a in switched:
                links = max(counts[a])
                edges.append(Edge(a, switch, links * self.nvlink_bytes_s, f"NV{links}"))
        for a in devices:
            for b in range(a + 1, len(self.devices)):
                links = counts[a][b]
                if links and not (a in switched and b in switched):
                    edges.append(Edge(a, b, links * self.nvlink_bytes_s, f"NV{links}"))
        return edges


_KINDS = {
    Level.PIX: VertexKind.BRIDGE,
    Level.PXB: VertexKind.BRIDGE,
    Level.PHB: VertexKind.HOST_BRIDGE,
    Level.NODE: VertexKind.NUMA,
    Level.SYS: VertexKind.MACHINE,
}


def _vertex_name(level: Level, devices: Sequence[Device], members: Sequence[int]) -> str:
    if level is Level.SYS:
        return "machine"
    nodes = {devices[d].numa_node for d in members}
    if level is Level.NODE and len(nodes) == 1 and (node := nodes.pop()) is not None:
        return f"NUMA {node}"
    return f"{_KINDS[level].value} of {', '.join(devices[d].name for d in members)}"
