"""`takt.ops.base.Ops` on the native runtime."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from takt import _native
from takt.errors import ConfigError, InvariantError, ModelError
from takt.ops.base import AttentionSpec
from takt.ops.native.program import Capture, EagerProgram, NativeProgram, Recorder
from takt.ops.native.rope_tables import RopeTables
from takt.parallel.links import RankLinks
from takt.types.kv import KVCacheSpec
from takt.types.precision import Int8Tokens
from takt.types.quant import QuantTensor, QuantType
from takt.types.step import StepLimits

_log = logging.getLogger(__name__)
_TYPE_INDEX = {quant_type: index for index, quant_type in enumerate(QuantType)}
_NO_VALUE = -1

MAX_THREADS_PER_CPU = 4
"""More would only take turns; a number that large is a mistake of unit or of machine."""


class NativeOps:
    """Operators on a pool of `num_threads` threads, the CPUs this process may use if None.

    `num_peers` other processes of as many threads share these CPUs: waits sleep rather than spin
    if not all of them can run at once. Activations are numbers of a program's values. One thread at
    a time may use an instance. Products with quantised weights take `int8_tokens` as int8
    and others as bf16. Raises `ConfigError` for a number of threads that cannot be.
    """

    def __init__(
        self,
        num_threads: int | None = None,
        num_peers: int = 0,
        *,
        int8_tokens: Int8Tokens = Int8Tokens.ALL,
    ) -> None:
        num_cpus = _native.num_usable_cpus()
        if num_threads is None:
            num_threads = num_cpus
        if num_threads > MAX_THREADS_PER_CPU * num_cpus:
            raise ConfigError(
                f"--num-threads {num_threads} is more than {MAX_THREADS_PER_CPU} for each of the "
                f"{num_cpus} CPUs this process may use; {num_cpus} are fastest"
            )
        try:
            self._pool = _native.Pool(num_threads, num_peers)
        except ValueError as error:
            raise ConfigError(f"--num-threads: {error}") from error
        if num_threads > num_cpus:
            _log.warning(
                "--num-threads %d is more than the %d CPUs this process may use: steps get slower",
                num_threads,
                num_cpus,
            )
        self.num_threads = num_threads
        self._int8_tokens = int8_tokens
        self.weight_bytes = 0
        self._kv: _native.KVPool | None = None
        self._ropes = RopeTables()
        self._recorder: Recorder | None = None
        self._max_position = 0
        self._links = RankLinks()

    @property
    def spin_ns(self) -> int:
        """How long a wait spins before it sleeps."""
        return int(self._pool.spin_ns)

    def close(self) -> None:
        """Joins the pool's threads. Programs stay usable, on the caller's thread alone."""
        self._pool.close()

    def abort(self) -> None:
        """Ends a step in progress in another thread, and refuses all later ones."""
        self._pool.abort()

    # -- once, while loading ------------------------------------------------------------------
    def pack_linear(
        self, parts: Sequence[QuantTensor], bias: np.ndarray | None = None
    ) -> _native.Weight:
        """See `takt.ops.base.Ops`; raises `ModelError` if parts and bias do not agree."""
        raw = [
            (
                np.ascontiguousarray(p.raw),
                _TYPE_INDEX[p.type],
                p.num_columns,
                _TYPE_INDEX[p.packed_type or p.type],
            )
            for p in parts
        ]
        if bias is not None:
            bias = np.ascontiguousarray(bias, dtype=np.float32)
        try:
            weight = _native.pack_linear(raw, bias, self.num_threads)
        except ValueError as error:
            names = " and ".join(filter(None, (part.name for part in parts))) or "weights"
            raise ModelError(f"{names} cannot be packed: {error}") from error
        self.weight_bytes += weight.nbytes
        return weight

    def pack_vector(self, values: np.ndarray) -> _native.Vector:
        return _native.pack_vector(np.ascontiguousarray(values, dtype=np.float32))

    def allocate_kv(self, spec: KVCacheSpec, num_blocks: Sequence[int]) -> None:
        """Makes the pools of programs that are captured from now on.

        Pages cost memory once they are written. Raises `InvariantError` if `spec` is at odds with
        itself and `ConfigError` if there is no address space for it.
        """
        group_of = {layer: g for g, group in enumerate(spec.groups) for layer in group.layers}
        if sorted(group_of) != list(range(len(group_of))):
            raise InvariantError(f"layers of the KV groups are not 0, 1, ...: {sorted(group_of)}")
        try:
            self._kv = _native.KVPool(
                [group_of[layer] for layer in range(len(group_of))],
                list(num_blocks),
                spec.num_kv_heads,
                spec.head_dim,
                spec.block_size,
                spec.dtype.label,
            )
        except ValueError as error:
            raise InvariantError(f"KV cache: {error}") from error
        except MemoryError as error:
            total = sum(n * spec.block_bytes(g) for g, n in enumerate(num_blocks))
            raise ConfigError(
                f"the KV pool of {total} bytes does not fit; set --kv-cache-memory-bytes lower"
            ) from error

    def program(
        self, forward: Callable[[], None], limits: StepLimits, *, max_position: int, eager: bool
    ) -> NativeProgram | EagerProgram:
        """See `takt.ops.base.Ops`; raises `InvariantError` if `forward` makes no sense."""
        self._max_position = max_position
        builder = _native.ProgramBuilder(
            dataclasses.asdict(limits),
            max_position,
            self.num_threads,
            self._kv,
            self._int8_tokens.value,
        )
        capture = Capture(builder)
        self._recording(capture, forward)
        if not capture.spans:
            raise InvariantError("forward called no operator")
        if eager:
            return EagerProgram(self._pool, capture, limits, forward, self._recording)
        return NativeProgram(self._pool, capture, limits)

    # -- inside `forward` ---------------------------------------------------------------------
    def embed(
        self,
        table: _native.Weight,
        scale: float,
        *,
        first_token: int = 0,
        vocab_size: int | None = None,
    ) -> int:
        return int(
            self._call(
                ("embed", table, scale),
                lambda b: b.embed(table, scale, first_token, vocab_size or 0),
            )
        )

    def norm(
        self,
        x: int,
        weight: _native.Vector,
        eps: float,
        *,
        residual: int | None = None,
        post_weight: _native.Vector | None = None,
    ) -> tuple[int, int]:
        base = _NO_VALUE if residual is None else residual
        normed, total = self._call(
            ("norm", x, weight, eps, base, post_weight),
            lambda b: b.norm(x, weight, eps, base, post_weight),
        )
        return normed, total

    def linear(self, x: int, weight: _native.Weight) -> int:
        return int(self._call(("linear", x, weight), lambda b: b.linear(x, weight)))

    def qkv_rope_cache(self, qkv: int, attention: AttentionSpec, layer: int) -> int:
        a = attention
        cos, sin = self._ropes.get(a.inv_freq, a.rope_magnitude, self._max_position)
        return int(
            self._call(
                ("qkv_rope_cache", qkv, id(a), layer),
                lambda b: b.rope_cache(
                    qkv, a.num_heads, cos, sin, a.q_norm, a.k_norm, a.norm_eps, layer
                ),
            )
        )

    def paged_attention(self, q: int, attention: AttentionSpec, layer: int) -> int:
        a = attention
        return int(
            self._call(
                ("paged_attention", q, id(a), layer),
                lambda b: b.attention(
                    q, a.num_heads, a.scale, a.logit_softcap, a.window or 0, layer
                ),
            )
        )

    def gated_mlp(self, x: int, gate_up: _native.Weight, down: _native.Weight, kind: str) -> int:
        return int(
            self._call(
                ("gated_mlp", x, gate_up, down, kind),
                lambda b: b.gated_mlp(x, gate_up, down, kind),
            )
        )

    def logits(self, x: int, head: _native.Weight, softcap: float) -> int:
        """Runs together with `sample`, which takes a bounded number of rows at a time."""
        return int(self._call(("logits", x, head, softcap), lambda b: b.logits(x, head, softcap)))

    def sample(self, logits: int) -> None:
        self._call(("sample", logits), lambda b: b.sample(logits))

    # -- between ranks ------------------------------------------------------------------------
    def connect(self, links: RankLinks) -> None:
        self._links = links

    def all_reduce(self, x: int) -> int:
        group = self._links.group
        return int(self._call(("all_reduce", x), lambda b: b.all_reduce(x, group)))

    def gather(self, logits: int, borders: Sequence[int]) -> int:
        group, columns = self._links.group, list(borders)
        return int(self._call(("gather", logits), lambda b: b.gather(logits, group, columns)))

    def send(self, x: int) -> None:
        channel = self._links.next
        self._call(("send", x), lambda b: b.send(x, channel))

    def receive(self, width: int) -> int:
        channel = self._links.previous
        return int(self._call(("receive", width), lambda b: b.receive(width, channel)))

    def _call(self, key: tuple[object, ...], emit: Callable[[_native.ProgramBuilder], Any]) -> Any:
        if self._recorder is None:
            raise InvariantError(f"{key[0]} was called outside of a program's forward")
        return self._recorder.call(key, emit)

    def _recording(self, recorder: Recorder, forward: Callable[[], None]) -> None:
        outer, self._recorder = self._recorder, recorder
        try:
            forward()
        finally:
            self._recorder = outer
