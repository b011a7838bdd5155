"""The file that `takt topo --measure` writes, read back as figures and as a device."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from takt.errors import ConfigError
from takt.parallel.compression import (
    Link,
    ReduceFormat,
    choose_format,
    measured_codecs,
)
from takt.plan.errors import PlanInputError
from takt.plan.hardware import parse_cluster
from takt.plan.model_data import find_model
from takt.plan.precision import parse_precision
from takt.plan.step_cost import StepCost
from takt.plan.this_machine import read_figures, this_machine_path, write_figures
from takt.plan.topology import Topology
from takt.types.machine import (
    BarrierCost,
    CodecRate,
    InstructionPeak,
    MachineFigures,
    ProductRate,
    ReadRate,
)

FIGURES = MachineFigures(
    cpu='Maker\'s "CPU" \\ 3 GHz, µ',
    num_threads=2,
    memory_bytes=32_000_000_000,
    isa="avx512",
    reads=(
        ReadRate(1, 1_000_000, 100e9),
        ReadRate(2, 1_000_000, 200e9),
        ReadRate(1, 256_000_000, 30e9),
        ReadRate(2, 256_000_000, 50e9),
    ),
    peaks=(
        InstructionPeak("tdpbusd", "int8", 2, 8e12),
        InstructionPeak("vpdpbusd zmm", "int8", 1, 0.5e12),
        InstructionPeak("vpdpbusd zmm", "int8", 2, 1e12),
        InstructionPeak("vdpbf16ps zmm", "bf16", 2, 0.5e12),
        InstructionPeak("vfmadd zmm", "f32", 2, 0.25e12),
    ),
    barriers=(BarrierCost(2, True, 500.0), BarrierCost(2, False, 9000.0)),
    products=(
        ProductRate("Q4_1", 1, 40e9, 80e9),
        ProductRate("Q4_1", 256, 1e9, 0.6e12),
        ProductRate("BF16", 1, 45e9, 45e9),
        ProductRate("BF16", 256, 1e9, 0.1e12),
    ),
    codecs=(CodecRate("bf16", 0.05, 0.04), CodecRate("int8", 0.2, 0.06)),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_figures_come_back_as_they_were_measured() -> None:
    assert read_figures() is None
    assert write_figures(FIGURES) == this_machine_path()
    assert read_figures() == FIGURES
    assert [path.name for path in this_machine_path().parent.iterdir()] == ["this-machine.toml"]


def test_the_planner_takes_the_figures_for_a_device() -> None:
    write_figures(FIGURES)
    device = parse_cluster("this-machine").accelerator
    assert device.bandwidth_bytes_s == 50e9
    assert device.flops("packed") == device.flops("int8") == 1e12, "not the tiles' peak"
    assert device.flops("bf16") == 0.25e12, "bf16 kernels multiply in f32"
    assert device.efficiency == pytest.approx(0.6)
    assert device.gemm_curves["packed"].share(1e6) == pytest.approx(0.8)
    assert device.gemm_curves["bf16"].share(1e9) == pytest.approx(0.9)
    assert device.devices_per_node == 1 and not device.has_device_links


def test_a_decode_step_reads_at_the_measured_rate() -> None:
    """One row with int8 weights: bytes over 40 GB/s, the head in 16 bits, barriers and host."""
    write_figures(FIGURES)
    model = find_model("llama-3-8b")
    device = parse_cluster("this-machine").accelerator
    cost = StepCost(model, device, Topology(1, 1, 1), parse_precision("int8"))
    step = cost.breakdown_of(1, 0, 1, 1)
    assert step.gemm == pytest.approx(model.block_bytes(1.0) / 40e9, rel=0.01)
    assert step.head == pytest.approx(model.head_bytes(2.0) / 45e9, rel=0.01)
    assert step.all_reduce == step.hops == 0


def test_prefill_computes_at_the_measured_rate_without_padding() -> None:
    write_figures(FIGURES)
    model = find_model("llama-3-8b")
    device = parse_cluster("this-machine").accelerator
    cost = StepCost(model, device, Topology(1, 1, 1), parse_precision("int8"))
    operations = 2.0 * model.block_params * 300
    assert cost.breakdown_of(0, 300, 300, 45_150).gemm == pytest.approx(
        operations / 0.6e12, rel=0.01
    )


def test_rates_between_measured_sizes_are_interpolated() -> None:
    assert FIGURES.read_bytes_s(10) == 200e9
    assert FIGURES.read_bytes_s(128_500_000) == pytest.approx(125e9)
    assert FIGURES.read_bytes_s(1e12) == 50e9
    assert FIGURES.read_bytes_s(1e12, 1) == 30e9


def test_peaks_are_those_of_the_kernels_instructions() -> None:
    assert FIGURES.kernel_peak("int8").instruction == "vpdpbusd zmm"
    other = dataclasses.replace(FIGURES, isa="unknown")
    assert other.kernel_peak("int8").instruction == "tdpbusd"
    assert dataclasses.replace(other, peaks=FIGURES.peaks[-1:]).kernel_peak("int8").instruction == (
        "vfmadd zmm"
    )


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: "][", "is not TOML"),
        (lambda text: text.replace("[measured]", "[other]"), "measured.cpu is missing"),
        (lambda text: text.replace("gop_s = 8000.0", "gop_s = -1"), "peak.gop_s must be"),
        (lambda text: text.replace("gop_s = 8000.0", "gop_s = nan"), "peak.gop_s must be"),
        (lambda text: text.replace("num_threads = 2", 'num_threads = "x"', 1), "num_threads must"),
    ],
)
def test_a_bad_file_is_named_in_one_line(edit, said: str) -> None:  # type: ignore[no-untyped-def]
    path = write_figures(FIGURES)
    path.write_text(edit(path.read_text()))
    with pytest.raises(PlanInputError, match=said) as error:
        read_figures()
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    assert "takt topo --measure" in str(error.value)


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file where the cache should be")
    with pytest.raises(ConfigError, match=r"this-machine\.toml cannot be written"):
        write_figures(FIGURES)


def test_compression_is_chosen_by_what_was_measured() -> None:
    """Over a link of a memory's bandwidth coding costs more than it spares; at 1 GB/s it pays."""
    codecs = measured_codecs(FIGURES, num_threads=2)
    assert codecs[ReduceFormat.INT8].encode_s == pytest.approx(0.1e-9)
    near = Link(500e-9, 50e9)
    assert choose_format(1_000_000, 4, 2, near, codecs).format is ReduceFormat.PLAIN
    network = Link(30e-6, 1e9)
    assert choose_format(1_000_000, 4, 2, network, codecs).format is ReduceFormat.INT8
