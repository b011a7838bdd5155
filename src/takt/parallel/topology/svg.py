"""The graph as SVG: devices in a row, direct links as arcs above, the tree of buses below."""

from __future__ import annotations

import html

from takt.parallel.topology.graph import Edge, Topology, VertexKind
from takt.parallel.topology.pipelines import Placement

_COLUMN, _LEVEL_HEIGHT, _TOP, _MARGIN = 132, 88, 96, 40
_BOX_WIDTH, _BOX_HEIGHT = 104, 40
_ARC_HEIGHT, _BELOW_HEIGHT = 22, 40
_INK, _GRID, _TREE, _DIRECT = "#1f2430", "#d9dce3", "#8a93a6", "#1d6fb8"
_FILLS = ("#dcebf7", "#f8e3d4", "#dff0dd", "#efe0f2", "#fbf2cf", "#d8f0ee", "#f6dce0", "#e6e6e6")

_DEPTH = {
    VertexKind.NVSWITCH: -1,
    VertexKind.DEVICE: 0,
    VertexKind.BRIDGE: 1,
    VertexKind.HOST_BRIDGE: 2,
    VertexKind.NUMA: 3,
    VertexKind.SOCKET: 4,
    VertexKind.MACHINE: 5,
}


def topology_svg(topology: Topology, placement: Placement) -> str:
    """Devices of one tensor-parallel group have one colour; each link says what it carries."""
    return _Drawing(topology, placement).svg()


class _Drawing:
    def __init__(self, topology: Topology, placement: Placement) -> None:
        self._topology = topology
        self._order = [d for replica in placement.devices for stage in replica for d in stage]
        self._group_of = {
            device: index
            for index, stage in enumerate(s for replica in placement.devices for s in replica)
            for device in stage
        }
        self._place_of = {
            device: (replica, stage, rank)
            for replica, stages in enumerate(placement.devices)
            for stage, devices in enumerate(stages)
            for rank, device in enumerate(devices)
        }
        count = topology.num_devices
        direct = [e for e in topology.edges if e.a < count and e.b < count]
        reach = max((abs(self._column(e.a) - self._column(e.b)) for e in direct), default=0)
        self._top = _TOP + _ARC_HEIGHT * reach + (_BELOW_HEIGHT // 2 if reach else 0)
        depths = sorted({_DEPTH[v.kind] for v in topology.vertices})
        self._row = {depth: row for row, depth in enumerate(depths)}
        self._x = self._columns()
        self._width = 2 * _MARGIN + _COLUMN * max(count, 4)
        self._height = self._top + _LEVEL_HEIGHT * len(depths) + _BELOW_HEIGHT / 2

    def svg(self) -> str:
        title = html.escape(self._topology.title)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}" '
            f'font-family="sans-serif" font-size="11" fill="{_INK}">',
            f'<rect width="{self._width}" height="{self._height}" fill="white"/>',
            f'<text x="{_MARGIN}" y="28" font-size="16">{title}</text>',
            f'<text x="{_MARGIN}" y="48">GB/s are per direction; '
            "boxes: replica.stage.rank, a colour for each tensor-parallel group</text>",
        ]
        parts += [self._edge(edge) for edge in self._topology.edges]
        parts += [self._vertex(index) for index in range(len(self._topology.vertices))]
        return "\n".join([*parts, "</svg>", ""])

    def _column(self, device: int) -> int:
        return self._order.index(device)

    def _columns(self) -> list[float]:
        """Devices in the order of their placement; other vertices over what hangs from them."""
        count = self._topology.num_devices
        x = [_MARGIN + _COLUMN * (self._column(d) + 0.5) for d in range(count)]
        vertices = self._topology.vertices
        x += [0.0] * (len(vertices) - count)
        for vertex in range(count, len(x)):
            below = [
                x[other]
                for e in self._topology.edges
                for other in ((e.a,) if e.b == vertex else (e.b,) if e.a == vertex else ())
                if other < vertex and vertices[other].kind is not vertices[vertex].kind
            ]
            x[vertex] = sum(below) / len(below) if below else _MARGIN + _COLUMN / 2
        return x

    def _y(self, vertex: int) -> float:
        return self._top + _LEVEL_HEIGHT * self._row[_DEPTH[self._topology.vertices[vertex].kind]]

    def _edge(self, edge: Edge) -> str:
        (x1, y1), (x2, y2) = ((self._x[v], self._y(v)) for v in (edge.a, edge.b))
        label = f"{edge.label} {edge.bytes_s / 1e9:.3g}"
        if y1 != y2:
            lower, upper = (y1 + _BOX_HEIGHT / 2, y2 - _BOX_HEIGHT / 2)
            if y1 > y2:
                lower, upper = y1 - _BOX_HEIGHT / 2, y2 + _BOX_HEIGHT / 2
            shape = f"M{x1:.0f} {lower:.0f}L{x2:.0f} {upper:.0f}"
            return self._path(shape, _TREE, (x1 + x2) / 2, (lower + upper) / 2, label)
        rise = 16 + _ARC_HEIGHT * abs(x1 - x2) / _COLUMN
        up = -1 if min(edge.a, edge.b) < self._topology.num_devices else 1
        if up > 0:  # below the boxes: above them lies the tree
            rise = _BELOW_HEIGHT / 2
        y = y1 + up * _BOX_HEIGHT / 2
        middle = (x1 + x2) / 2
        shape = f"M{x1:.0f} {y:.0f}Q{middle:.0f} {y + 2 * up * rise:.0f} {x2:.0f} {y:.0f}"
        return self._path(shape, _DIRECT, middle, y + up * rise, label)

    @staticmethod
    def _path(shape: str, colour: str, x: float, y: float, label: str) -> str:
        return (
            f'<path d="{shape}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
            f'<text x="{x:.0f}" y="{y - 3:.0f}" text-anchor="middle" fill="{colour}" '
            f'stroke="white" stroke-width="3" paint-order="stroke">{html.escape(label)}</text>'
        )

    def _vertex(self, index: int) -> str:
        x, y = self._x[index], self._y(index)
        vertex = self._topology.vertices[index]
        fill, second = _GRID, ""
        if index < self._topology.num_devices:
            fill = _FILLS[self._group_of[index] % len(_FILLS)]
            second = ".".join(str(n) for n in self._place_of[index])
        name = vertex.name if len(vertex.name) <= 16 else vertex.kind.value
        lines = [name, second] if second else [name]
        texts = "".join(
            f'<text x="{x:.0f}" y="{y + 4 + 15 * (i - (len(lines) - 1) / 2):.0f}" '
            f'text-anchor="middle">{html.escape(line)}</text>'
            for i, line in enumerate(lines)
        )
        return (
            f"<g><title>{html.escape(vertex.name)}</title>"
            f'<rect x="{x - _BOX_WIDTH / 2:.0f}" y="{y - _BOX_HEIGHT / 2:.0f}" '
            f'width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" fill="{fill}" '
            f'stroke="{_INK}"/>{texts}</g>'
        )
