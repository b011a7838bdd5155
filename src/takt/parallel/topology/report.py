"""A topology with its groups, as tables for people and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from takt.parallel.cpu_list import format_cpu_list
from takt.parallel.topology.all_reduce import AllReduceModel
from takt.parallel.topology.graph import Topology
from takt.parallel.topology.pipelines import Placement

EXAMPLE_BYTES = 16e6
"""Message whose modelled time is shown: 1,024 tokens of a hidden size of 8,192 in 16 bits."""


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """A placement beside the order in which the devices are numbered."""

    topology: Topology
    tp: int
    pp: int
    placement: Placement
    all_reduce_s: float
    default_all_reduce_s: float

    @classmethod
    def of(cls, topology: Topology, tp: int, pp: int, placement: Placement) -> PlacementReport:
        model = AllReduceModel(topology)
        groups = [stage for replica in placement.devices for stage in replica]
        default = [range(i, i + tp) for i in range(0, topology.num_devices, tp)]
        return cls(
            topology,
            tp,
            pp,
            placement,
            model.seconds(groups, EXAMPLE_BYTES),
            model.seconds(default, EXAMPLE_BYTES),
        )

    def as_json(self) -> dict[str, object]:
        return {
            "tensor_parallel_size": self.tp,
            "pipeline_parallel_size": self.pp,
            "data_parallel_size": len(self.placement.devices),
            "devices": [[list(stage) for stage in r] for r in self.placement.devices],
            "group_gb_s": _gb_s(self.placement.group_bytes_s),
            "hop_gb_s": _gb_s(self.placement.hop_bytes_s),
            "is_exact": self.placement.is_exact,
            "all_reduce_us": 1e6 * self.all_reduce_s,
            "default_order_all_reduce_us": 1e6 * self.default_all_reduce_s,
        }


def topology_json(topology: Topology) -> dict[str, object]:
    labels, bandwidths = topology.labels(), topology.bandwidths()
    return {
        "source": topology.title,
        "devices": [
            {"name": d.name, "detail": d.detail, "numa_node": d.numa_node, "cpus": list(d.cpus)}
            for d in topology.devices
        ],
        "links": labels,
        "gb_s": [[_gb_s(b) for b in row] for row in bandwidths],
        "edges": [
            {
                "from": topology.vertices[e.a].name,
                "to": topology.vertices[e.b].name,
                "link": e.label,
                "gb_s": e.bytes_s / 1e9,
            }
            for e in topology.edges
        ],
    }


def print_topology(topology: Topology, console: Console) -> None:
    """The matrix of links: name, and GB/s in one direction."""
    table = Table(title=f"{topology.title}: narrowest link of each pair, GB/s per direction")
    table.add_column("")
    for device in topology.devices:
        table.add_column(device.name, justify="right")
    details = ["" if d.detail.startswith("CPUs ") else d.detail for d in topology.devices]
    for heading in ("NUMA", "CPUs", "device")[: 3 if any(details) else 2]:
        table.add_column(heading)
    labels, bandwidths = topology.labels(), topology.bandwidths()
    for i, device in enumerate(topology.devices):
        cells = [
            "X" if i == j else f"{labels[i][j]} {bandwidths[i][j] / 1e9:.3g}"
            for j in range(topology.num_devices)
        ]
        node = "" if device.numa_node is None else str(device.numa_node)
        extra = [details[i]] if any(details) else []
        table.add_row(device.name, *cells, node, format_cpu_list(device.cpus), *extra)
    console.print(table)


def print_placements(reports: list[PlacementReport], console: Console) -> None:
    table = Table(title="Groups of ranks, in the order of --tensor-parallel-size neighbours")
    for heading, justify in (
        ("TP", "right"),
        ("PP", "right"),
        ("DP", "right"),
        ("devices: ranks of a stage, > next stage, | next replica", "left"),
        ("in groups", "right"),
        ("hops", "right"),
        ("all-reduce", "right"),
        ("in given order", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for report in reports:
        placement = report.placement
        text = " | ".join(
            " > ".join(",".join(str(d) for d in stage) for stage in replica)
            for replica in placement.devices
        )
        table.add_row(
            str(report.tp),
            str(report.pp),
            str(len(placement.devices)),
            text + ("" if placement.is_exact else " (not exact)"),
            _rate(placement.group_bytes_s),
            _rate(placement.hop_bytes_s),
            f"{1e6 * report.all_reduce_s:.0f} us" if report.tp > 1 else "-",
            f"{1e6 * report.default_all_reduce_s:.0f} us" if report.tp > 1 else "-",
        )
    console.print(table)
    console.print(
        f"all-reduce: modelled, {EXAMPLE_BYTES / 1e6:.0f} MB in all groups at once", markup=False
    )


def _gb_s(bytes_s: float) -> float | None:
    return None if math.isinf(bytes_s) else bytes_s / 1e9


def _rate(bytes_s: float) -> str:
    return "-" if math.isinf(bytes_s) else f"{bytes_s / 1e9:.3g} GB/s"
