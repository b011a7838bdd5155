"""Loops that measure the machine: that they run, cover what the CPU has, and refuse nonsense."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from takt import _native
from takt.ops.native import measure, products_rate
from takt.ops.native.measure import (
    largest_cache_bytes,
    measure_machine,
    read_sizes,
    thread_counts,
)
from takt.parallel.cpu_name import cpu_name
from takt.types.quant import QuantType

MOMENT_S = 0.0005


def test_every_figure_of_a_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_MOST_BYTES", 1 << 18)
    monkeypatch.setattr(measure, "largest_cache_bytes", lambda: 0)
    monkeypatch.setattr(products_rate, "_NUM_MATRICES", {QuantType.Q4_1: 2, QuantType.BF16: 1})
    stages: dict[str, list[tuple[int, int]]] = {}
    figures = measure_machine(
        lambda stage, done, total: stages.setdefault(stage, []).append((done, total)), MOMENT_S
    )
    assert set(stages) == {
        "read bandwidth",
        "multiply instructions",
        "barriers",
        "products",
        "codecs",
    }
    assert [codec.format for codec in figures.codecs] == ["bf16", "fp16", "int8"]
    assert all(codec.encode_ns > 0 and codec.decode_ns > 0 for codec in figures.codecs)
    for steps in stages.values():
        assert [done for done, _ in steps] == list(range(steps[-1][1] + 1))
    assert {p.instruction for p in figures.peaks} == {
        name for name, _ in _native.multiply_instructions()
    }
    assert {(p.weights, p.num_rows) for p in figures.products} == {
        (weights, rows) for weights in ("Q4_1", "BF16") for rows in (1, 256)
    }
    rates = [r.bytes_s for r in figures.reads] + [p.ops_s for p in figures.peaks]
    rates += [p.bytes_s for p in figures.products] + [p.ops_s for p in figures.products]
    assert all(0 < rate < math.inf for rate in rates), "how high they are is the machine's affair"
    assert figures.isa in _native.available_isas()
    assert figures.kernel_peak("int8").num_threads == figures.num_threads


def test_instructions_are_those_of_the_cpu() -> None:
    """Against the flags that the kernel lists, where it lists them."""
    flags = Path("/proc/cpuinfo").read_text()
    names = {name for name, _ in _native.multiply_instructions()}
    for flag, name in (
        ("avx512_vnni", "vpdpbusd zmm"),
        ("avx_vnni", "vpdpbusd ymm"),
        ("avx512_bf16", "vdpbf16ps zmm"),
        ("avx2", "vpmaddubsw ymm"),
    ):
        assert (name in names) == (f" {flag}" in flags)
    assert any(arithmetic == "f32" for _, arithmetic in _native.multiply_instructions())


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="is no multiply instruction"):
        _native.instruction_peak("fsincos", 1, MOMENT_S)
    with pytest.raises(ValueError, match="4096 at least"):
        _native.read_bandwidth(4096, 2, MOMENT_S)
    with pytest.raises(ValueError, match="threads can be measured"):
        _native.read_bandwidth(1 << 20, 0, MOMENT_S)
    with pytest.raises(ValueError, match="up to 60 s"):
        _native.read_bandwidth(1 << 20, 1, 1e9)
    with pytest.raises(ValueError, match="cannot spin"):
        _native.barrier_cost_ns(512, True, 1)
    with pytest.raises(ValueError, match="known: bf16, fp16, int8"):
        _native.codec_cost("fp4", MOMENT_S)
    with pytest.raises(ValueError, match="one step"):
        _native.barrier_cost_ns(1, True, 0)


def test_sizes_pass_the_caches_where_memory_allows() -> None:
    mib = 1 << 20
    assert read_sizes(32 << 30, 32 * mib)[-1] == 256 * mib
    assert read_sizes(32 << 30, 300 * mib)[-1] == 600 * mib
    assert read_sizes(2 << 30, 300 * mib)[-1] == 256 * mib
    assert thread_counts(6) == (1, 2, 4, 6)
    assert thread_counts(1) == (1,)


def test_cpu_and_caches_are_named_as_the_kernel_does(tmp_path: Path) -> None:
    cache = tmp_path / "devices/system/cpu/cpu0/cache"
    for index, size in enumerate(("48K", "2048K", "32M")):
        (cache / f"index{index}").mkdir(parents=True)
        (cache / f"index{index}" / "size").write_text(f"{size}\n")
    assert largest_cache_bytes(tmp_path) == 32 << 20
    assert largest_cache_bytes(tmp_path / "none") == 0
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 3 GHz\n")
    assert cpu_name(tmp_path / "cpuinfo") == "Some CPU @ 3 GHz"
    assert cpu_name(tmp_path / "none")
