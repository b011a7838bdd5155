"""L3 domains of this machine's CPUs as devices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from takt.parallel.cpu_list import format_cpu_list
from takt.parallel.cpu_topology import CpuTopology
from takt.parallel.topology.graph import Device, Edge, Topology, Vertex, VertexKind

LOCAL_BYTES_S = 40e9
"""Assumed between caches of one NUMA node, in the order of one chiplet's link to memory."""
LOCAL_DISTANCE = 10


def cpu_device_topology(cpus: CpuTopology, local_bytes_s: float = LOCAL_BYTES_S) -> Topology:
    """One device per L3 cache, below its NUMA node, below its socket.

    Bandwidth falls as the distance rises: the firmware's distances are relative latencies, the
    local one being 10. They order links well enough for grouping. All that goes from one socket to
    another shares the link between them.
    """
    domains = cpus.l3_domains()
    devices = [
        Device(
            f"L3-{index}",
            detail=f"CPUs {format_cpu_list(c.number for c in members)}",
            numa_node=node,
            cpus=tuple(c.number for c in members),
        )
        for index, (node, members) in enumerate(domains)
    ]
    graph = _Graph(cpus, [Vertex(d.name, VertexKind.DEVICE) for d in devices], local_bytes_s)
    nodes_of: dict[int, list[int]] = {}
    for node, members in domains:
        nodes = nodes_of.setdefault(members[0].core[0], [])
        if node not in nodes:
            nodes.append(node)
    node_vertices = {
        n: graph.add(f"NUMA {n}", VertexKind.NUMA) for ns in nodes_of.values() for n in ns
    }
    for index, (node, _) in enumerate(domains):
        graph.link(index, node_vertices[node], LOCAL_DISTANCE, "NODE")
    sockets = {
        package: graph.socket(package, nodes, node_vertices) for package, nodes in nodes_of.items()
    }
    for a, b in itertools.combinations(sockets, 2):
        distance = min(cpus.distances[x][y] for x in nodes_of[a] for y in nodes_of[b])
        graph.link(sockets[a], sockets[b], distance, f"distance {distance}")
    return Topology("CPUs by L3 cache", tuple(devices), tuple(graph.vertices), tuple(graph.edges))


class _Graph:
    def __init__(self, cpus: CpuTopology, vertices: list[Vertex], local_bytes_s: float) -> None:
        self.vertices = vertices
        self.edges: list[Edge] = []
        self._cpus = cpus
        self._local_bytes_s = local_bytes_s

    def add(self, name: str, kind: VertexKind) -> int:
        self.vertices.append(Vertex(name, kind))
        return len(self.vertices) - 1

    def link(self, a: int, b: int, distance: int, label: str) -> None:
        share = LOCAL_DISTANCE / max(distance, LOCAL_DISTANCE)
        self.edges.append(Edge(a, b, share * self._local_bytes_s, label))

    def socket(self, package: int, nodes: Sequence[int], vertices: Mapping[int, int]) -> int:
        """A vertex above the nodes of a socket; a single node is its socket."""
        if len(nodes) == 1:
            return vertices[nodes[0]]
        distance = max(self._cpus.distances[a][b] for a in nodes for b in nodes if a != b)
        socket = self.add(f"socket {package}", VertexKind.SOCKET)
        for node in nodes:
            self.link(vertices[node], socket, distance, f"distance {distance}")
        return socket
