"""The file of what was measured on this machine, which the planner reads as any device's.

Beside the tables of a device it keeps all figures, under `[measured]`. The device is one CPU: a
step's product reads its weights at the share of the memory's bandwidth that the engine's own
one-row products got, and computes at the share of the register peak that its products of 256 rows
got; peaks are those of the instructions that the chosen kernels use, not of the fastest there are.
Work is not padded to tiles, and there are no links: one device is all there is.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from takt.config import cache_home
from takt.errors import ConfigError
from takt.plan.errors import PlanInputError
from takt.plan.hardware import THIS_MACHINE
from takt.plan.hardware_file import Section, read_toml
from takt.types.machine import (
    BarrierCost,
    CodecRate,
    InstructionPeak,
    MachineFigures,
    ProductRate,
    ReadRate,
)

_BATCH_ROWS = 256
_INSTRUCTIONS_PER_LAYER = 9
"""Norm, qkv, rope, attention in two, output, norm, gate and up, down."""
_HOST_US = 200.0
"""An allowance: scheduling and messages of one stream (`make bench-step` measures them)."""
_ATTENTION_SHARE = 0.5
"""Assumed: KV blocks are read in shorter runs than weights."""
_POWER_W = 100.0
"""Assumed: neither firmware nor data sheet is asked."""
_RESERVE_GB = 2.0


def this_machine_path() -> Path:
    return cache_home() / "hardware" / f"{THIS_MACHINE}.toml"


def check_writable() -> None:
    """Raises `ConfigError` if the file could not be written; asked before a minute of measuring."""
    with _writing() as path:
        path.touch()
        path.unlink()


def write_figures(figures: MachineFigures) -> Path:
    """Replaces the file; raises `ConfigError` if the cache cannot be written."""
    with _writing() as path:
        path.write_text(figures_toml(figures))
        path.replace(this_machine_path())
    return this_machine_path()


@contextlib.contextmanager
def _writing() -> Iterator[Path]:
    """Yields the file's new version to be."""
    path = this_machine_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path.with_suffix(".new")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; TAKT_CACHE names another place"
        ) from error


def read_figures() -> MachineFigures | None:
    """None before the first measurement; `PlanInputError` names file and field if bad."""
    path = this_machine_path()
    if not path.exists():
        return None
    try:
        return _figures(Section(path, "", read_toml(path)).section("measured"))
    except PlanInputError as error:
        raise PlanInputError(f"{error}; measure again: takt topo --measure") from error


def figures_toml(figures: MachineFigures) -> str:
    """The device's tables, then all that was measured."""
    read = figures.memory_read()
    int8, bf16 = figures.kernel_peak("int8"), figures.kernel_peak("bf16")
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    source = f"takt topo --measure on {figures.cpu}, {figures.num_threads} threads, {day}"
    lines = [f"name = {_text(THIS_MACHINE)}", "aliases = []"]
    lines += _table(
        "memory",
        capacity_gb=figures.memory_bytes / 1e9,
        bandwidth_gb_s=read.bytes_s / 1e9,
        reserve_gb=min(_RESERVE_GB, figures.memory_bytes / 4e9),
        attention_share=_ATTENTION_SHARE,
        source=f"{source}: {read.num_bytes / 1e6:.0f} MB read again and again; share assumed",
    )
    lines += _table(
        "compute",
        num_units=figures.num_threads,
        tile_rows=1,
        tile_columns=16,
        efficiency=_share(figures.product("Q4_1", _BATCH_ROWS).ops_s / int8.ops_s),
        bf16_tflops=bf16.ops_s / 1e12,
        int8_tflops=int8.ops_s / 1e12,
        packed_tflops=int8.ops_s / 1e12,
        source=f"{source}: {bf16.instruction} and {int8.instruction} from registers; efficiency: "
        f"products of {_BATCH_ROWS} rows with Q4_1",
    )
    lines += _node_and_launch(figures, read.bytes_s, source)
    lines += _gemm_curves(figures, read.bytes_s, source)
    return "\n".join([*lines, *_measured(figures), ""])


def _node_and_launch(figures: MachineFigures, read_bytes_s: float, source: str) -> Iterable[str]:
    barriers = [b.ns for b in figures.barriers if b.num_threads == figures.num_threads]
    barrier_us = max(0.0, min(barriers, default=0.0)) / 1e3
    yield from _table(
        "node",
        num_devices=1,
        power_w=_POWER_W,
        device_gb_s=read_bytes_s / 1e9,
        host_gb_s=read_bytes_s / 1e9,
        network_gb_s=1.0,
        hop_us=barrier_us,
        network_latency_us=50.0,
        has_device_links=False,
        source="one CPU: memory is the link; power, network and its latency assumed",
    )
    yield from _table(
        "launch",
        kernel_us=barrier_us,
        other_kernels_us_per_layer=_INSTRUCTIONS_PER_LAYER * barrier_us,
        prefill_kernels_us_per_layer=0.0,
        host_us=_HOST_US,
        source=f"{source}: the pool's barrier; a layer has {_INSTRUCTIONS_PER_LAYER}; host assumed",
    )


def _gemm_curves(figures: MachineFigures, read_bytes_s: float, source: str) -> Iterable[str]:
    for curve, weights in (
        ("bf16", "BF16"),
        ("int8", "Q4_1"),
        ("int4", "Q4_1"),
        ("packed", "Q4_1"),
    ):
        yield from _table(
            "[gemm]",
            weights=curve,
            size_mb=[1.0],
            share=[_share(figures.product(weights, 1).bytes_s / read_bytes_s)],
            source=f"{source}: products of one row with {weights}, 64 MB of weights",
        )


def _measured(figures: MachineFigures) -> Iterable[str]:
    yield from _table(
        "measured",
        cpu=figures.cpu,
        num_threads=figures.num_threads,
        memory_bytes=figures.memory_bytes,
        isa=figures.isa,
    )
    for read in figures.reads:
        yield from _table(
            "[measured.read]",
            num_threads=read.num_threads,
            num_bytes=read.num_bytes,
            gb_s=read.bytes_s / 1e9,
        )
    for peak in figures.peaks:
        yield from _table(
            "[measured.peak]",
            instruction=peak.instruction,
            arithmetic=peak.arithmetic,
            num_threads=peak.num_threads,
            gop_s=peak.ops_s / 1e9,
        )
    for barrier in figures.barriers:
        yield from _table(
            "[measured.barrier]",
            num_threads=barrier.num_threads,
            spins=barrier.spins,
            ns=barrier.ns,
        )
    for product in figures.products:
        yield from _table(
            "[measured.product]",
            weights=product.weights,
            num_rows=product.num_rows,
            gb_s=product.bytes_s / 1e9,
            gop_s=product.ops_s / 1e9,
        )
    for codec in figures.codecs:
        yield from _table(
            "[measured.codec]",
            format=codec.format,
            encode_ns=codec.encode_ns,
            decode_ns=codec.decode_ns,
        )


def _figures(measured: Section) -> MachineFigures:
    return MachineFigures(
        cpu=measured.text("cpu"),
        num_threads=measured.whole("num_threads"),
        memory_bytes=measured.whole("memory_bytes"),
        isa=measured.text("isa"),
        reads=tuple(
            ReadRate(s.whole("num_threads"), s.whole("num_bytes"), s.positive("gb_s") * 1e9)
            for s in measured.sections("read")
        ),
        peaks=tuple(
            InstructionPeak(
                s.text("instruction"),
                s.text("arithmetic"),
                s.whole("num_threads"),
                s.positive("gop_s") * 1e9,
            )
            for s in measured.sections("peak")
        ),
        barriers=tuple(
            BarrierCost(s.whole("num_threads"), s.flag("spins"), s.not_negative("ns"))
            for s in measured.sections("barrier", optional=True)
        ),
        products=tuple(
            ProductRate(
                s.text("weights"),
                s.whole("num_rows"),
                s.positive("gb_s") * 1e9,
                s.positive("gop_s") * 1e9,
            )
            for s in measured.sections("product")
        ),
        codecs=tuple(
            CodecRate(s.text("format"), s.positive("encode_ns"), s.positive("decode_ns"))
            for s in measured.sections("codec", optional=True)
        ),
    )


def _share(value: float) -> float:
    """Products out of a cache may pass the memory's figure: a share ends at 1."""
    return min(1.0, value)


def _table(name: str, **fields: object) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in fields.items())]


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(float(f"{value:.6g}")) if isinstance(value, float) else str(value)


def _text(value: str) -> str:
    """JSON's escapes are those of TOML's basic strings."""
    return json.dumps(value, ensure_ascii=False)
