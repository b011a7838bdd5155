"""One weighted graph of devices, switches, bridges and memory domains."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class VertexKind(enum.StrEnum):
    DEVICE = "device"
    NVSWITCH = "NVSwitch"
    BRIDGE = "PCIe bridge"
    HOST_BRIDGE = "PCIe host bridge"
    NUMA = "NUMA node"
    SOCKET = "socket"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Vertex:
    name: str
    kind: VertexKind


@dataclass(frozen=True, slots=True)
class Edge:
    """A link that carries `bytes_s` in each direction at once."""

    a: int
    b: int
    bytes_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Device:
    """What a rank runs on: an accelerator, or a group of CPUs."""

    name: str
    detail: str = ""
    numa_node: int | None = None
    cpus: tuple[int, ...] = ()
    """CPUs near an accelerator, or those that the device is made of."""


@dataclass(frozen=True, slots=True)
class Topology:
    """`devices[i]` is vertex i; the others follow."""

    title: str
    devices: tuple[Device, ...]
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    def paths(self) -> list[list[tuple[int, ...]]]:
        """Indices of the edges from device a to device b, `[num_devices][num_devices]`.

        The widest path, of those the shortest. Devices pass nothing on: a copy between two of them
        never runs through a third. Empty on the diagonal. Raises `ValueError` if some pair has no
        path.
        """
        neighbours: list[list[tuple[int, int]]] = [[] for _ in self.vertices]
        for index, edge in enumerate(self.edges):
            neighbours[edge.a].append((edge.b, index))
            neighbours[edge.b].append((edge.a, index))
        return [self._paths_from(source, neighbours) for source in range(self.num_devices)]

    def _paths_from(
        self, source: int, neighbours: Sequence[Sequence[tuple[int, int]]]
    ) -> list[tuple[int, ...]]:
        """Dijkstra's algorithm with the narrowest edge, then the number of edges, as length."""
        best: dict[int, tuple[float, int]] = {source: (float("inf"), 0)}
        path: dict[int, tuple[int, ...]] = {source: ()}
        done: set[int] = set()
        while True:
            open_vertices = [v for v in best if v not in done]
            if not open_vertices:
                break
            at = min(open_vertices, key=lambda v: (-best[v][0], best[v][1], v))
            done.add(at)
            if at != source and at < self.num_devices:
                continue
            width, hops = best[at]
            for other, index in neighbours[at]:
                found = (min(width, self.edges[index].bytes_s), hops + 1)
                known = best.get(other, (0.0, 0))
                if other not in done and (-found[0], found[1]) < (-known[0], known[1]):
                    best[other] = found
                    path[other] = (*path[at], index)
        missing = [b for b in range(self.num_devices) if b not in path]
        if missing:
            raise ValueError(f"no path from device {source} to {missing[0]}")
        return [path[b] for b in range(self.num_devices)]

    def bandwidths(self) -> list[list[float]]:
        """Bytes per second between two devices alone, `[num_devices][num_devices]`."""
        return [
            [min((self.edges[e].bytes_s for e in path), default=float("inf")) for path in row]
            for row in self.paths()
        ]

    def labels(self) -> list[list[str]]:
        """The narrowest link of each pair's path, by its label; X on the diagonal.

        Of equally narrow ones that which is furthest from the devices: later vertices are.
        """

        def label(path: tuple[int, ...]) -> str:
            edges = [self.edges[index] for index in path]
            return min(edges, key=lambda e: (e.bytes_s, -max(e.a, e.b))).label if edges else "X"

        return [[label(path) for path in row] for row in self.paths()]


def renumbered(topology: Topology, order: Sequence[int]) -> Topology:
    """The same machine with device `order[i]` as device i."""
    place = {old: new for new, old in enumerate(order)}
    place |= {v: v for v in range(topology.num_devices, len(topology.vertices))}
    vertices = [topology.vertices[old] for old in order]
    return Topology(
        title=topology.title,
        devices=tuple(topology.devices[old] for old in order),
        vertices=(*vertices, *topology.vertices[topology.num_devices :]),
        edges=tuple(Edge(place[e.a], place[e.b], e.bytes_s, e.label) for e in topology.edges),
    )
