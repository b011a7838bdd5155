"""The choice of an all-reduce's format: never one that loses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takt.errors import ConfigError
from takt.parallel.compression import (
    BITS_PER_VALUE,
    CodecCost,
    Link,
    ReduceFormat,
    choose_format,
    two_step_s,
)

PCIE = Link(latency_s=5e-6, bytes_s=10e9)
NVLINK = Link(latency_s=2e-6, bytes_s=450e9)
CODECS = {
    ReduceFormat.BF16: CodecCost(1 / 50e9, 1 / 50e9, 2e-6),
    ReduceFormat.INT8: CodecCost(1 / 20e9, 1 / 30e9, 4e-6),
}


def test_long_messages_on_slow_links_are_compressed() -> None:
    choice = choose_format(16_000_000, 2, 8, PCIE, CODECS)
    assert choice.format is ReduceFormat.INT8
    wide = choose_format(16_000_000, 4, 2, PCIE, CODECS)
    assert wide.format is ReduceFormat.INT8
    without = choose_format(16_000_000, 4, 2, PCIE, {ReduceFormat.BF16: CODECS[ReduceFormat.BF16]})
    assert without.format is ReduceFormat.BF16


def test_short_messages_fast_links_and_single_ranks_are_not() -> None:
    assert choose_format(576, 2, 8, PCIE, CODECS).format is ReduceFormat.PLAIN
    assert choose_format(16_000_000, 2, 8, NVLINK, CODECS).format is ReduceFormat.PLAIN
    assert choose_format(16_000_000, 4, 1, PCIE, CODECS).format is ReduceFormat.PLAIN


def test_sixteen_bits_are_no_compression_of_sixteen() -> None:
    choice = choose_format(16_000_000, 2, 4, PCIE, CODECS)
    assert set(choice.predicted_s) == {ReduceFormat.PLAIN, ReduceFormat.INT8}


def test_the_formula_by_hand() -> None:
    """1 MB among 4: six messages, 1.5 MB over the link; int8 sends 36/128 of float32."""
    assert two_step_s(1e6, 4, Link(1e-6, 1e9)) == pytest.approx(6e-6 + 1.5e-3)
    codec = {ReduceFormat.INT8: CodecCost(1e-9, 2e-9, 7e-6)}
    predicted = choose_format(250_000, 4, 4, Link(1e-6, 1e9), codec).predicted_s
    encode, decode = 250_000 * 1e-9, 6 / 4 * 250_000 * 2e-9
    assert predicted[ReduceFormat.INT8] == pytest.approx(
        6e-6 + 1.5e-3 * 36 / 128 + encode + decode + 7e-6
    )


positive = st.floats(1e-12, 1e-3)
codec_costs = st.builds(CodecCost, positive, positive, st.floats(0, 1e-3))


@given(
    num_values=st.integers(1, 10**9),
    value_bytes=st.sampled_from([2, 4]),
    ranks=st.integers(1, 64),
    link=st.builds(Link, st.floats(0, 1e-3), st.floats(1e6, 1e12)),
    codecs=st.dictionaries(st.sampled_from(list(BITS_PER_VALUE)), codec_costs),
    margin=st.floats(0, 0.9),
)
def test_never_chosen_where_it_loses(
    num_values: int,
    value_bytes: int,
    ranks: int,
    link: Link,
    codecs: dict[ReduceFormat, CodecCost],
    margin: float,
) -> None:
    choice = choose_format(num_values, value_bytes, ranks, link, codecs, margin=margin)
    plain = choice.predicted_s[ReduceFormat.PLAIN]
    assert plain == two_step_s(num_values * value_bytes, ranks, link)
    if choice.format is not ReduceFormat.PLAIN:
        assert choice.format in codecs
        assert choice.predicted_s[choice.format] <= (1 - margin) * plain
        assert choice.predicted_s[choice.format] == min(choice.predicted_s.values())
        assert BITS_PER_VALUE[choice.format] < 8 * value_bytes


@given(st.integers(1, 30), st.floats(0.96, 1.04), st.floats(0.96, 1.04))
def test_the_margin_covers_constants_that_are_off_by_some_percent(
    log_values: int, link_error: float, codec_error: float
) -> None:
    """Chosen with constants that are wrong by 4 %, a format still wins with the right ones."""
    num_values = 2**log_values
    seen = choose_format(
        num_values,
        4,
        4,
        Link(PCIE.latency_s, PCIE.bytes_s * link_error),
        {
            name: CodecCost(c.encode_s * codec_error, c.decode_s * codec_error, c.fixed_s)
            for name, c in CODECS.items()
        },
    )
    right = choose_format(num_values, 4, 4, PCIE, CODECS, margin=0.0).predicted_s
    assert right[seen.format] <= right[ReduceFormat.PLAIN]


def test_nonsense_is_refused() -> None:
    for values, size, ranks in ((0, 4, 2), (8, 0, 2), (8, 4, 0)):
        with pytest.raises(ConfigError, match="at least 1"):
            choose_format(values, size, ranks, PCIE, CODECS)
    for latency, rate in ((-1.0, 1e9), (0.0, 0.0), (0.0, math.inf), (math.nan, 1e9)):
        with pytest.raises(ConfigError, match="a link's"):
            Link(latency, rate)


def test_the_stated_error_bounds_hold() -> None:
    """Two roundings, the second of the sum: bf16 by value, int8 by group of 32."""
    rng = np.random.default_rng(3)
    terms = rng.normal(size=(8, 4096)).astype(np.float32) * np.exp(rng.normal(size=4096)).astype(
        np.float32
    )
    exact = terms.sum(axis=0, dtype=np.float64)

    def bf16(x: np.ndarray) -> np.ndarray:
        bits = x.astype(np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (rounded & np.uint32(0xFFFF0000)).view(np.float32)

    def int8(x: np.ndarray) -> np.ndarray:
        groups = x.reshape(*x.shape[:-1], -1, 32)
        scale = np.abs(groups).max(axis=-1, keepdims=True) / 127
        return (np.rint(groups / scale) * scale).reshape(x.shape).astype(np.float32)

    total = bf16(bf16(terms).sum(axis=0, dtype=np.float32))
    second_order = 1.01
    bound = 2.0**-8 * (np.abs(terms).sum(axis=0) + np.abs(exact)) * second_order
    assert (np.abs(total - exact) <= bound).all()

    total = int8(int8(terms).sum(axis=0, dtype=np.float32))
    half_steps = np.abs(terms).reshape(8, -1, 32).max(axis=-1).sum(axis=0) / 254
    half_steps += np.abs(exact).reshape(-1, 32).max(axis=-1) / 254 * 1.05
    assert (np.abs(total - exact) <= np.repeat(half_steps, 32) * second_order).all()
