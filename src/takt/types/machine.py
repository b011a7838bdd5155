"""What was measured on a machine: the peaks that durations are compared with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadRate:
    """`num_threads` threads that read `num_bytes` together, again and again."""

    num_threads: int
    num_bytes: int
    bytes_s: float


@dataclass(frozen=True, slots=True)
class InstructionPeak:
    """Operations per second from registers, two for a multiply-add."""

    instruction: str
    arithmetic: str
    """int8, bf16 or f32."""
    num_threads: int
    ops_s: float


@dataclass(frozen=True, slots=True)
class BarrierCost:
    """Between two instructions of a step, with nothing to compute."""

    num_threads: int
    spins: bool
    ns: float


@dataclass(frozen=True, slots=True)
class ProductRate:
    """Products of the engine's own kernels with all threads."""

    weights: str
    """Storage type, such as Q4_1."""
    num_rows: int
    bytes_s: float
    """Packed weights read."""
    ops_s: float


@dataclass(frozen=True, slots=True)
class CodecRate:
    """One thread that compresses values of an all-reduce and adds up expanded ones."""

    format: str
    """bf16, fp16, or int8 in groups of 32."""
    encode_ns: float
    """Of a value; likewise to decode."""
    decode_ns: float


@dataclass(frozen=True, slots=True)
class MachineFigures:
    cpu: str
    num_threads: int
    """CPUs that the process may use: the most threads of any measurement."""
    memory_bytes: int
    isa: str
    """Instruction set that the kernels chose."""
    reads: tuple[ReadRate, ...]
    peaks: tuple[InstructionPeak, ...]
    barriers: tuple[BarrierCost, ...]
    products: tuple[ProductRate, ...]
    codecs: tuple[CodecRate, ...] = ()

    def memory_read(self) -> ReadRate:
        """The largest size with all threads: memory, where it is larger than the caches."""
        return max(
            (rate for rate in self.reads if rate.num_threads == self.num_threads),
            key=lambda rate: rate.num_bytes,
        )

    def read_bytes_s(self, num_bytes: float, num_threads: int | None = None) -> float:
        """For a working set of that size, interpolated between those measured; all threads if None.

        Raises `IndexError` for a number of threads that was not measured.
        """
        wanted = num_threads or self.num_threads
        rates = sorted(
            (rate for rate in self.reads if rate.num_threads == wanted),
            key=lambda rate: rate.num_bytes,
        )
        if num_bytes <= rates[0].num_bytes:
            return rates[0].bytes_s
        for low, high in itertools.pairwise(rates):
            if num_bytes <= high.num_bytes:
                part = (num_bytes - low.num_bytes) / (high.num_bytes - low.num_bytes)
                return low.bytes_s + part * (high.bytes_s - low.bytes_s)
        return rates[-1].bytes_s

    def kernel_peak(self, arithmetic: str) -> InstructionPeak:
        """With all threads, of the instruction that the chosen kernels are built on.

        Without bf16 products, bf16 weights are widened exactly and multiplied in f32. Where the
        instruction was not measured: the fastest of that arithmetic, else of f32.
        """
        name = _KERNEL_INSTRUCTIONS.get(self.isa, {}).get(arithmetic)
        peaks = [peak for peak in self.peaks if peak.num_threads == self.num_threads]
        candidates = (
            [peak for peak in peaks if peak.instruction == name],
            [peak for peak in peaks if peak.arithmetic == arithmetic],
            [peak for peak in peaks if peak.arithmetic == "f32"],
        )
        for found in candidates:
            if found:
                return max(found, key=lambda peak: peak.ops_s)
        raise ValueError("no multiplication was measured with all threads")

    def product(self, weights: str, num_rows: int) -> ProductRate:
        """Raises `KeyError` for one that was not measured."""
        for rate in self.products:
            if (rate.weights, rate.num_rows) == (weights, num_rows):
                return rate
        raise KeyError(f"products of {num_rows} rows with {weights}")


_KERNEL_INSTRUCTIONS = {
    # Products of many rows; of few, as avx512_bf16.
    "amx": {"int8": "tdpbusd", "bf16": "vdpbf16ps zmm", "f32": "vfmadd zmm"},
    "avx512_bf16": {"int8": "vpdpbusd zmm", "bf16": "vdpbf16ps zmm", "f32": "vfmadd zmm"},
    "avx512": {"int8": "vpdpbusd zmm", "bf16": "vfmadd zmm", "f32": "vfmadd zmm"},
    "avx2": {"int8": "vpmaddubsw ymm", "bf16": "vfmadd ymm", "f32": "vfmadd ymm"},
    "generic": {a: "mulps and addps xmm" for a in ("int8", "bf16", "f32")},
}
