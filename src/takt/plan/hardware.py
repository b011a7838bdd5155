"""Machines as data: what a device can do at best, and what of it software gets.

One TOML file a device, each table with the source of its figures. Files of the user's own lie in
the cache (`hardware/*.toml`); a file there named after this machine holds what was measured on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from takt.config import cache_home
from takt.plan.errors import PlanInputError, unknown_name
from takt.plan.hardware_file import Section, read_toml

THIS_MACHINE = "this-machine"


@dataclass(frozen=True, slots=True)
class GemmCurve:
    """Share of the memory's bandwidth that a product of one row gets, by bytes of weights.

    Shares between the sizes are interpolated, outside them those of the nearest; `floor_s` is
    added to each product.
    """

    weights: str
    sizes_bytes: tuple[float, ...]
    shares: tuple[float, ...]
    floor_s: float
    source: str

    def share(self, num_bytes: float) -> float:
        sizes, shares = self.sizes_bytes, self.shares
        if num_bytes <= sizes[0]:
            return shares[0]
        for i in range(1, len(sizes)):
            if num_bytes <= sizes[i]:
                part = (num_bytes - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
                return shares[i - 1] + part * (shares[i] - shares[i - 1])
        return shares[-1]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One all-reduce among `ranks` devices of a node: a latency, then bytes over a bandwidth."""

    ranks: int
    latency_s: float
    one_shot_bytes_s: float
    """Every rank reads all others' copies: small messages."""
    large_bytes_s: float
    """Bus bandwidth of the two-shot form: large messages."""
    source: str


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device and its node. Bytes and operations per second are peaks of the data sheet."""

    name: str
    aliases: tuple[str, ...]
    memory_bytes: float
    bandwidth_bytes_s: float
    reserve_bytes: float
    """Taken by contexts, graphs and buffers."""
    attention_share: float
    """Share of the bandwidth that attention gets when it reads KV."""
    peak_flops: Mapping[str, float]
    """By the arithmetic's type: bf16, fp8, int8; packed, where files' own types have kernels."""
    efficiency: float
    """Share of the peak that a full wave of tiles gets."""
    num_units: int
    """Tiles that are computed at a time."""
    tile_rows: int
    tile_columns: int
    devices_per_node: int
    power_w: float
    device_link_bytes_s: float
    host_link_bytes_s: float
    network_bytes_s: float
    """Per device, one direction; likewise the links."""
    hop_s: float
    network_latency_s: float
    has_device_links: bool
    kernel_s: float
    """The least that any kernel takes."""
    other_kernels_s_per_layer: float
    """Attention's launch, norms, rope, activation: whatever does not grow with the batch."""
    prefill_kernels_s_per_layer: float
    """What a step with a prompt in it has beside."""
    host_s: float
    """Host work of a step; hidden as far as the device takes longer."""
    gemm_curves: Mapping[str, GemmCurve]
    all_reduces: Mapping[int, AllReduce]
    sources: Mapping[str, str]

    def flops(self, arithmetic: str) -> float:
        """Peak operations per second; a type the device lacks is computed in bf16."""
        return self.peak_flops.get(arithmetic, self.peak_flops["bf16"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """A number of equal devices, in nodes of `devices_per_node`."""

    accelerator: Accelerator
    num_devices: int

    @property
    def label(self) -> str:
        return f"{self.num_devices}x{self.accelerator.name}"


def known_accelerators(extra_file: Path | None = None) -> dict[str, Accelerator]:
    """All devices by name: ours, those of the user's files, then of `extra_file`."""
    paths = sorted(_shipped().glob("*.toml"))
    paths += sorted((cache_home() / "hardware").glob("*.toml"))
    if extra_file is not None:
        paths.append(extra_file)
    found = [read_accelerator(path) for path in paths]
    return {accelerator.name: accelerator for accelerator in found}


def parse_cluster(text: str, extra_file: Path | None = None) -> Cluster:
    """A cluster from `16xA100-80G`, or one device from a name alone.

    Raises `PlanInputError` with the nearest names for an unknown device.
    """
    match = re.fullmatch(r"(?:(\d+)\s*[xX*])?\s*(\S.*?)\s*", text)
    if match is None:
        raise PlanInputError("--hardware is empty; give a device such as 16xA100-80G")
    count = int(match[1] or 1)
    if count < 1:
        raise PlanInputError(f"--hardware {text!r} asks for {count} devices; give at least 1")
    known = known_accelerators(extra_file)
    names = {
        spelling.lower(): accelerator
        for accelerator in known.values()
        for spelling in (accelerator.name, *accelerator.aliases)
    }
    accelerator = names.get(match[2].lower())
    if accelerator is None:
        if match[2].lower() == THIS_MACHINE:
            raise PlanInputError(
                f"{THIS_MACHINE} has not been measured: {cache_home() / 'hardware'} has no file "
                "of that name; run takt topo --measure, or name a known device"
            )
        raise unknown_name("hardware", match[2], known)
    return Cluster(accelerator, count)


def read_accelerator(path: Path) -> Accelerator:
    """Reads a device's file; raises `PlanInputError` that names file and field."""
    root = Section(path, "", read_toml(path))
    memory, compute = root.section("memory"), root.section("compute")
    node, launch = root.section("node"), root.section("launch")
    curves = [_gemm_curve(section) for section in root.sections("gemm")]
    reduces = [_all_reduce(section) for section in root.sections("all_reduce", optional=True)]
    accelerator = Accelerator(
        name=root.text("name"),
        aliases=tuple(root.texts("aliases")),
        memory_bytes=memory.positive("capacity_gb") * 1e9,
        bandwidth_bytes_s=memory.positive("bandwidth_gb_s") * 1e9,
        reserve_bytes=memory.not_negative("reserve_gb") * 1e9,
        attention_share=memory.share("attention_share"),
        peak_flops=_peaks(compute),
        efficiency=compute.share("efficiency"),
        num_units=compute.whole("num_units"),
        tile_rows=compute.whole("tile_rows"),
        tile_columns=compute.whole("tile_columns"),
        devices_per_node=node.whole("num_devices"),
        power_w=node.positive("power_w"),
        device_link_bytes_s=node.positive("device_gb_s") * 1e9,
        host_link_bytes_s=node.positive("host_gb_s") * 1e9,
        network_bytes_s=node.positive("network_gb_s") * 1e9,
        hop_s=node.not_negative("hop_us") / 1e6,
        network_latency_s=node.not_negative("network_latency_us") / 1e6,
        has_device_links=node.flag("has_device_links"),
        kernel_s=launch.not_negative("kernel_us") / 1e6,
        other_kernels_s_per_layer=launch.not_negative("other_kernels_us_per_layer") / 1e6,
        prefill_kernels_s_per_layer=launch.not_negative("prefill_kernels_us_per_layer") / 1e6,
        host_s=launch.not_negative("host_us") / 1e6,
        gemm_curves={curve.weights: curve for curve in curves},
        all_reduces={reduce.ranks: reduce for reduce in reduces},
        sources={s.name: s.text("source") for s in (memory, compute, node, launch)},
    )
    if "bf16" not in accelerator.gemm_curves:
        raise root.error("gemm", "has no entry for bf16 weights")
    return accelerator


def _peaks(compute: Section) -> dict[str, float]:
    peaks = {
        arithmetic: compute.positive(f"{arithmetic}_tflops") * 1e12
        for arithmetic in ("bf16", "fp8", "int8", "packed")
        if compute.has(f"{arithmetic}_tflops")
    }
    if "bf16" not in peaks:
        raise compute.error("bf16_tflops", "is missing")
    return peaks


def _gemm_curve(section: Section) -> GemmCurve:
    sizes, shares = section.numbers("size_mb"), section.numbers("share")
    if len(sizes) != len(shares) or not sizes or sizes != sorted(sizes):
        raise section.error("share", "must have one entry for each ascending size_mb")
    if not all(0 < share <= 1 for share in shares):
        raise section.error("share", f"must lie above 0 and at most at 1, got {shares}")
    return GemmCurve(
        weights=section.text("weights"),
        sizes_bytes=tuple(size * 1e6 for size in sizes),
        shares=tuple(shares),
        floor_s=section.not_negative("floor_us", 0.0) / 1e6,
        source=section.text("source"),
    )


def _all_reduce(section: Section) -> AllReduce:
    return AllReduce(
        ranks=section.whole("ranks"),
        latency_s=section.not_negative("latency_us") / 1e6,
        one_shot_bytes_s=section.positive("one_shot_gb_s") * 1e9,
        large_bytes_s=section.positive("large_gb_s") * 1e9,
        source=section.text("source"),
    )


def _shipped() -> Any:
    return Path(str(resources.files("takt.plan"))) / "data" / "hardware"
