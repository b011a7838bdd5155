"""Messages between a server and an engine core: MessagePack, never pickle.

One `StepMessage` leaves the engine per step, whatever the number of requests in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from takt.scheduler.load_snapshot import LoadSnapshot
from takt.types.sampling_params import SamplingParams


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    """`request_id` is unique for the life of the client; choices of n > 1 share it."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    slo_itl_ns: int | None = None
    """Its own targets; None leaves it to the server's. Likewise for TTFT."""
    slo_ttft_ns: int | None = None
    num_generated_before: int = 0
    """Tokens at the prompt's end that another engine generated, which this one goes on from."""


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Ends every choice of each request, or with `choice` that one only."""

    request_ids: list[str]
    choice: int | None = None


class OffloadBlocks(msgspec.Struct, frozen=True, tag="offload"):
    """Copies cold prefixes to host memory, where the engine has some."""

    hot_share: float
    """Of the unused ones, those used last, which stay as they are."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


EngineCommand = AddRequest | AbortRequests | OffloadBlocks | Shutdown


class CommandMessage(msgspec.Struct, frozen=True, array_like=True):
    """A command as it travels; an engine drops those of another epoch than its own."""

    epoch: int
    command: EngineCommand


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of one position, of the raw model, in nats, always finite."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class RequestOutput(msgspec.Struct, array_like=True):
    """What one step brought to one choice of one request."""

    request_id: str
    choice: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """Entries for the prompt positions computed in this step; None for the first token."""
    finish_reason: str | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int | None = None
    """Set once, with the first output."""
    error: str | None = None
    """Set with finish_reason "error": a sentence for the client."""
    error_param: str | None = None
    """The field of the request that the error is about, where there is one."""
    error_code: str | None = None
    first_scheduled_ns: int | None = None
    """Start of the first step that the request was in, on the engine's clock; set once, with the
    first output."""
    step_id: int = -1
    """The step that it came with; the receiver fills it in."""


class StepStats(msgspec.Struct, array_like=True):
    """One step's record: times on the engine's monotonic clock, sizes, and the pool's state."""

    step_id: int
    schedule_start_ns: int
    run_start_ns: int
    run_end_ns: int
    update_end_ns: int
    num_decode_seqs: int
    num_prefill_tokens: int
    num_kv_tokens_read: int
    num_qk_pairs: int
    num_running: int
    num_waiting: int
    num_waiting_for_capacity: int
    kv_blocks_used: int
    kv_blocks_total: int
    prefix_cache_queries: int
    """Tokens asked of the prefix cache in this step; hits likewise."""
    prefix_cache_hits: int
    num_preempted: int
    queue_times_ns: list[int]
    """Arrival to first schedule, of the requests first scheduled in this step."""
    num_redone_tiles: int
    predicted_ns: int = 0
    """Of the whole step, schedule to update, before it ran; 0 where time is not modelled."""
    predicted_p99_ns: int = 0
    num_decode_kv_tokens: int = 0
    """The part of `num_kv_tokens_read` that the decodes read."""
    stolen_run_ns: int = 0
    """Time that pool threads were kept off their CPUs while the program ran, summed over them."""
    stolen_host_ns: int = 0
    """The same of the engine's thread between the run before and this one."""
    gc_ns: int = 0
    """Garbage collection in the engine's process since the step before."""
    computed_ns: int = 0
    """Time that pool threads were on a CPU and did not wait, summed; 0 if it is not known."""
    load: LoadSnapshot | None = None
    """What admission goes by; not with every step where nobody is refused."""
    pipeline_depth: int = 1
    """Steps that were to be in flight."""
    kv_unwritten_permille: int = 0
    """Of the fullest pool, reserved and not written: sampled every few steps of a pipeline whose
    depth follows the load, 0 elsewhere."""
    preempted_ids: list[str] = []
    """Requests that lost their place in this step."""
    kv_fullest_share: float = 0.0
    """Share of its blocks that the fullest KV group uses."""
    num_offloaded_blocks: int = 0
    """KV blocks copied to host memory since the step before; and from there."""
    num_restored_blocks: int = 0


IN_OUTPUTS = -1
"""Stands for a decode's token that comes as an output, or that nobody waits for any more."""


class StepMessage(msgspec.Struct, tag="step", omit_defaults=True):
    """What a step brought: a plain token of each decode in order, and all else as outputs."""

    epoch: int
    outputs: list[RequestOutput]
    stats: StepStats | None
    token_ids: Sequence[int] = ()
    members: list[tuple[str, int]] | None = None
    """Request and choice of each of `token_ids`; None: those of the message before."""


class PipelineInfo(msgspec.Struct, frozen=True):
    """How layers are divided over the stages of a pipeline."""

    stage_layers: list[int]
    """Number of layers of each stage."""
    stage_shares: list[float]
    """Of the time of a step, by the costs that the division went by."""
    costs: str
    """Where these are from: measured, modelled, or given where the user divided the layers."""
    depth: str
    """Steps in flight: a number, or auto."""


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """Sent once by a started engine; sizes are tokens unless named otherwise."""

    epoch: int
    max_model_len: int
    vocab_size: int
    num_kv_tokens: int
    kv_cache_bytes: int
    kv_cache_dtype: str
    kv_block_size: int
    kv_num_blocks: list[int]
    """Of each KV group; likewise the bytes of a block, K and V of all the group's layers."""
    kv_block_bytes: list[int]
    num_threads: int
    load_seconds: float
    load: LoadSnapshot | None = None
    """Of the idle engine, where it keeps targets."""
    precision: str = ""
    """The precision policy and what it gave the model, in one line."""
    pipeline: PipelineInfo | None = None
    """Of an engine with several stages."""
    kv_num_host_blocks: list[int] = []
    """Of host memory for cold prefixes, by KV group; empty where there is none."""
    step_times: str = ""
    """What is known of the length of steps, in one line; "" where time is not modelled."""


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot start: a user's mistake (config, model) in a sentence fit to be shown."""

    epoch: int
    message: str
    exit_code: int


class LoadProgress(msgspec.Struct, frozen=True, tag="progress"):
    epoch: int
    stage: str
    done: int
    total: int


EngineEvent = StepMessage | EngineReady | EngineFailed | LoadProgress
