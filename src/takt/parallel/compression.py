"""Whether to compress an all-reduce: the cost of each format by link and message size.

For S bytes of values among N ranks in two steps (reduce-scatter, then all-gather) every rank sends
and receives 2 (N-1)/N S. A compressed form sends fewer bytes and pays for coding:

    plain     2 (N-1) a + 2 (N-1)/N S / B
    16 bits   the same with S' = S/2 of float32 (bf16 or fp16 values gain nothing), plus encoding
              and decoding what is sent and received
    int8      groups of 32 with one float32 scale: 36 bytes for 32 values; likewise

where a is the latency of a message and B the link's bandwidth. Two steps: each rank decodes the
N-1 shares it receives, sums in float32, encodes the sum once and passes it on. So a value is
rounded once before the sum and once after it: with r the relative rounding error (2^-8 for bf16,
2^-11 for normal fp16) and x_i the terms, |error| <= r (sum |x_i| + |sum x_i|) to first order; with
int8 each rounding is at most half of a step of its group, max|x| / 254.

Ranks of one host read each other's memory: a plain sum takes one step, and no link stands between
that a formula would know. There the all-reduce itself is measured, with every format.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from takt.errors import ConfigError
from takt.types.machine import MachineFigures

INT8_GROUP = 32
_SCALE_BYTES = 4

MARGIN = 0.1
"""A compressed form must be predicted faster by this share. Constants are measured to some percent,
and where forms are near each other exactness is worth more than the difference."""


class ReduceFormat(enum.StrEnum):
    PLAIN = "plain"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


FORMAT_OF_DTYPE = {
    "float32": ReduceFormat.PLAIN,
    "bfloat16": ReduceFormat.BF16,
    "float16": ReduceFormat.FP16,
    "int8": ReduceFormat.INT8,
}
"""Of values that are float32, as those between CPU ranks are."""

BITS_PER_VALUE = {
    ReduceFormat.BF16: 16.0,
    ReduceFormat.FP16: 16.0,
    ReduceFormat.INT8: 8.0 + 8.0 * _SCALE_BYTES / INT8_GROUP,
}


@dataclass(frozen=True, slots=True)
class Link:
    """Between neighbouring ranks, one direction."""

    latency_s: float
    bytes_s: float

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise ConfigError(f"a link's latency must be at least 0 s, got {self.latency_s}")
        if not (self.bytes_s > 0 and math.isfinite(self.bytes_s)):
            raise ConfigError(f"a link's bandwidth must be above 0 bytes/s, got {self.bytes_s}")


@dataclass(frozen=True, slots=True)
class CodecCost:
    """Measured on one rank. `encode_s` and `decode_s` are seconds per value of the plain type.

    `fixed_s` is paid once in a compressed all-reduce: launches, or joining threads.
    """

    encode_s: float
    decode_s: float
    fixed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReduceChoice:
    format: ReduceFormat
    predicted_s: Mapping[ReduceFormat, float]


def measured_codecs(figures: MachineFigures, num_threads: int = 1) -> dict[ReduceFormat, CodecCost]:
    """Of this CPU, for ranks of `num_threads` threads, which share the values evenly."""
    return {
        ReduceFormat(codec.format): CodecCost(
            codec.encode_ns * 1e-9 / num_threads, codec.decode_ns * 1e-9 / num_threads
        )
        for codec in figures.codecs
    }


def choose_format(
    num_values: int,
    value_bytes: int,
    num_ranks: int,
    link: Link,
    codecs: Mapping[ReduceFormat, CodecCost],
    *,
    margin: float = MARGIN,
) -> ReduceChoice:
    """The fastest format that is allowed: plain, or one that `codecs` has a measurement for.

    `num_values` values of `value_bytes` each are summed over `num_ranks`. A format that would not
    send fewer bytes is not considered. Never returns one that is predicted slower than plain, nor
    one that gains less than `margin`. Raises `ConfigError` for sizes below 1.
    """
    for name, size in (("values", num_values), ("bytes", value_bytes), ("ranks", num_ranks)):
        if size < 1:
            raise ConfigError(f"an all-reduce needs at least 1 of {name}, got {size}")
    plain = two_step_s(num_values * value_bytes, num_ranks, link)
    predicted = {ReduceFormat.PLAIN: plain}
    for name, codec in codecs.items():
        if name is ReduceFormat.PLAIN or BITS_PER_VALUE[name] >= 8 * value_bytes:
            continue
        predicted[name] = _compressed_s(name, codec, num_values, num_ranks, link)
    fastest = fastest_of_all([predicted], margin=margin) if num_ranks > 1 else ReduceFormat.PLAIN
    return ReduceChoice(fastest, predicted)


def fastest_of_all(
    seconds: Sequence[Mapping[ReduceFormat, float]], *, margin: float = MARGIN
) -> ReduceFormat:
    """The format that messages of several sizes share: `seconds[i]` is what each takes at size i.

    One that is not faster than plain by `margin` at every size is not chosen; of several the one
    that takes the least share of plain's time. An engine has one format for all its steps, because
    a row's sum must not depend on how many rows travel with it.
    """

    def share(name: ReduceFormat, size: Mapping[ReduceFormat, float]) -> float:
        return size[name] / size[ReduceFormat.PLAIN]

    winners = [
        name
        for name in seconds[0]
        if name is not ReduceFormat.PLAIN and all(share(name, s) <= 1 - margin for s in seconds)
    ]
    return min(
        winners, key=lambda name: sum(share(name, s) for s in seconds), default=ReduceFormat.PLAIN
    )


def two_step_s(num_bytes: float, num_ranks: int, link: Link) -> float:
    """Reduce-scatter and all-gather of `num_bytes` per rank, without coding."""
    sent = 2 * (num_ranks - 1) / num_ranks * num_bytes
    return 2 * (num_ranks - 1) * link.latency_s + sent / link.bytes_s


def _compressed_s(
    name: ReduceFormat, codec: CodecCost, num_values: int, num_ranks: int, link: Link
) -> float:
    """A rank encodes N-1 shares and its sum, and decodes N-1 shares twice."""
    share = num_values / num_ranks
    encoded, decoded = num_ranks * share, 2 * (num_ranks - 1) * share
    sent = two_step_s(num_values * BITS_PER_VALUE[name] / 8, num_ranks, link)
    coding = 0.0
    if num_ranks > 1:
        coding = codec.fixed_s + encoded * codec.encode_s + decoded * codec.decode_s
    return sent + coding
