"""Sizes fixed at start-up: the longest context, the blocks of each KV group, a step's buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from takt.config import EngineConfig
from takt.engine.precision import resolve_kv_dtype
from takt.errors import ConfigError
from takt.kvcache.host_tier import MAX_HOST_COPIES
from takt.kvcache.sizing import peak_blocks
from takt.types.kv import KVCacheSpec, KVGroupSpec
from takt.types.step import StepLimits

MAX_BIASES_PER_ROW = 1024
"""Entries of logit_bias, and ids that min_tokens forbids, of one request together."""

SLIDING_SHARE = 0.5
"""Most of the pool that sliding windows may take beside full attention.

A short request needs as many blocks of a sliding group as of full attention, a long one far fewer:
the windows of max_num_seqs requests are served first, but never at the price of contexts.
"""


@dataclass(frozen=True, slots=True)
class EngineSizes:
    max_model_len: int
    kv: KVCacheSpec
    num_blocks: tuple[int, ...]
    """Blocks of each KV group."""
    limits: StepLimits
    notice: str | None
    """A line for the user when a default had to be lowered."""
    num_host_blocks: tuple[int, ...] = ()
    """Likewise, of host memory for cold prefixes, numbered behind those of the pool; or none."""

    @property
    def num_blocks_in_memory(self) -> tuple[int, ...]:
        """Blocks of each KV group, host memory included."""
        host = self.num_host_blocks or (0,) * len(self.num_blocks)
        return tuple(own + more for own, more in zip(self.num_blocks, host, strict=True))

    @property
    def kv_cache_bytes(self) -> int:
        return sum(n * self.kv.block_bytes(g) for g, n in enumerate(self.num_blocks))

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose context the pool holds at once: those of its widest group."""
        widest = max(range(len(self.num_blocks)), key=lambda g: _width(self.kv.groups[g]))
        return self.num_blocks[widest] * self.kv.block_size


@dataclass(frozen=True, slots=True)
class KVShape:
    """What of a model the pool's size depends on; heads are those of this rank."""

    groups: Sequence[KVGroupSpec]
    num_kv_heads: int
    head_dim: int
    max_model_len: int


def plan_sizes(
    config: EngineConfig,
    model: KVShape,
    available_bytes: int,
    *,
    vocab_size: int,
    max_steps_in_flight: int = 1,
) -> EngineSizes:
    """Sizes for a model in `available_bytes` of memory that is free once its weights are loaded.

    Raises `ConfigError` if the asked context is longer than the model's, or if one request of it
    does not fit into the pool.
    """
    kv = KVCacheSpec(
        groups=tuple(model.groups),
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.cache.block_size,
        dtype=resolve_kv_dtype(config),
    )
    asked_len = config.model.max_model_len
    check_max_model_len(config, model.max_model_len)
    # Tokens that a step in flight may still write lie in front of a window until it has ended.
    chunk = config.scheduler.max_num_batched_tokens * max_steps_in_flight
    demand = _Demand(kv, asked_len or model.max_model_len, chunk, config.scheduler.max_num_seqs)
    pool_bytes = config.cache.kv_cache_memory_bytes
    if pool_bytes is None:
        budget = int(config.cache.gpu_memory_utilization * available_bytes)
        pool_bytes = min(budget, demand.wanted_bytes())
    notice = None
    if demand.least_bytes() > pool_bytes:
        fitting = _longest_fitting(demand, pool_bytes)
        if asked_len is not None or fitting < 1:
            raise ConfigError(_too_small(config, demand, pool_bytes, fitting))
        notice = (
            f"max_model_len is {fitting} instead of the model's {model.max_model_len}: the KV pool "
            f"of {pool_bytes} bytes holds no longer request (see --kv-cache-memory-bytes)"
        )
        demand = replace(demand, max_model_len=fitting)
    num_blocks = demand.divide(pool_bytes)
    return EngineSizes(
        max_model_len=demand.max_model_len,
        kv=kv,
        num_blocks=num_blocks,
        limits=_step_limits(config, kv, demand.max_model_len, vocab_size),
        notice=notice,
        num_host_blocks=_host_blocks(config, kv, num_blocks),
    )


def check_max_model_len(config: EngineConfig, model_limit: int) -> None:
    """Raises `ConfigError` if the asked context is longer than the model's."""
    asked = config.model.max_model_len
    if asked is not None and asked > model_limit:
        raise ConfigError(
            f"--max-model-len {asked} is more than the model was made for, {model_limit}; "
            "ask for that or less"
        )


@dataclass(frozen=True, slots=True)
class _Demand:
    """Blocks that requests of the longest context can use, by KV group."""

    kv: KVCacheSpec
    max_model_len: int
    max_chunk_tokens: int
    max_num_seqs: int

    def blocks_per_request(self, group: int) -> int:
        """The most that one request holds at once, in the middle of its longest chunk."""
        return peak_blocks(self.kv, group, self.max_model_len, self.max_chunk_tokens)

    def wanted_blocks(self, group: int) -> int:
        return self.max_num_seqs * self.blocks_per_request(group)

    def least_bytes(self) -> int:
        return self._bytes(self.blocks_per_request)

    def wanted_bytes(self) -> int:
        return self._bytes(self.wanted_blocks)

    def divide(self, pool_bytes: int) -> tuple[int, ...]:
        """Blocks of each group in a pool that holds at least `least_bytes`."""
        groups = range(len(self.kv.groups))
        least = [self.blocks_per_request(g) for g in groups]
        sliding = [g for g in groups if self.kv.groups[g].window is not None]
        full = [g for g in groups if self.kv.groups[g].window is None]
        share = SLIDING_SHARE if full else 1.0
        room = {g: least[g] for g in groups}
        spare = pool_bytes - self.least_bytes()
        wanted = sum((self.wanted_blocks(g) - least[g]) * self.kv.block_bytes(g) for g in sliding)
        part = min(1.0, share * spare / wanted) if wanted else 0.0
        for g in sliding:
            more = int((self.wanted_blocks(g) - least[g]) * part)
            room[g] += more
            spare -= more * self.kv.block_bytes(g)
        # Full attention has the rest, so that a pool of a given size is used whole; with windows
        # alone the rest keeps what they have passed, for the prefix cache.
        takers = full or sliding
        each = spare // sum(self.kv.block_bytes(g) for g in takers)
        for g in takers:
            room[g] += each
        return tuple(room[g] for g in groups)

    def _bytes(self, blocks: Callable[[int], int]) -> int:
        return sum(blocks(g) * self.kv.block_bytes(g) for g in range(len(self.kv.groups)))


def _longest_fitting(demand: _Demand, pool_bytes: int) -> int:
    """Longest context of which one request fits, whole blocks of it; 0 if none does."""
    size = demand.kv.block_size
    low, high = 0, demand.max_model_len // size
    while low < high:
        middle = (low + high + 1) // 2
        if replace(demand, max_model_len=middle * size).least_bytes() <= pool_bytes:
            low = middle
        else:
            high = middle - 1
    return low * size


def _too_small(config: EngineConfig, demand: _Demand, pool_bytes: int, fitting: int) -> str:
    source = (
        "--kv-cache-memory-bytes"
        if config.cache.kv_cache_memory_bytes is not None
        else "the share of the free memory (--gpu-memory-utilization)"
    )
    way_out = f"; the longest that fits is {fitting} tokens" if fitting else ""
    return (
        f"one request of max_model_len {demand.max_model_len} needs {demand.least_bytes()} bytes "
        f"of KV pool, but {source} gives {pool_bytes}{way_out}"
    )


def _host_blocks(
    config: EngineConfig, kv: KVCacheSpec, num_blocks: Sequence[int]
) -> tuple[int, ...]:
    """Host memory divided over KV groups as the pool is."""
    if not config.cache.kv_offloading_size:
        return ()
    host_bytes = config.cache.kv_offloading_size * 2**30
    pool_bytes = sum(n * kv.block_bytes(g) for g, n in enumerate(num_blocks))
    return tuple(int(n * host_bytes / pool_bytes) for n in num_blocks)


def _step_limits(
    config: EngineConfig, kv: KVCacheSpec, max_model_len: int, vocab_size: int
) -> StepLimits:
    options = config.scheduler
    seqs, tokens = options.max_num_seqs, options.max_num_batched_tokens
    return StepLimits(
        max_num_tokens=tokens,
        max_num_seqs=seqs,
        # Every token scored and every sequence sampled: no step can need more.
        max_num_rows=tokens + seqs,
        max_blocks_per_seq=_ceil_div(max_model_len, kv.block_size),
        num_kv_groups=len(kv.groups),
        max_num_block_copies=seqs * len(kv.groups)
        + (MAX_HOST_COPIES if config.cache.kv_offloading_size else 0),
        # Each sequence may penalise every token of its context, and each token once.
        max_num_history=seqs * min(max_model_len, vocab_size),
        max_num_biases=seqs * MAX_BIASES_PER_ROW,
        max_logprobs=options.max_logprobs,
    )


def _width(group: KVGroupSpec) -> float:
    return float("inf") if group.window is None else group.window


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
