"""Every default, once. A field's metadata is its flag's help and its row in docs/reference."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from takt.errors import ConfigError

_DEEPEST = 4
"""Steps in flight for each stage, at most."""

MAX_TARGET_MS = 1e9
"""Targets beyond it, some eleven days, promise nothing."""


_DTYPES_OF_C = {"half": "float16", "float": "float32"}
"""Further names of types, as vLLM and PyTorch have them."""


def _option(default: Any, help_text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfigOptions:
    """What to load and how to compute."""

    model: str = _option("smollm2-135m", "Alias, Hub id, GGUF file or Hugging Face directory.")
    tokenizer: str | None = _option(None, "Path of a tokenizer.json to use instead of the model's.")
    max_model_len: int | None = _option(
        None, "Longest prompt plus output, in tokens; the model's own limit if not given."
    )
    dtype: str = _option(
        "auto",
        "auto keeps quantised weights and makes float weights int8, both with int8 activations; "
        "float32 computes everything in fp32; bfloat16 rounds weights and activations to bf16; "
        "float16 keeps weights in fp16 and activations in fp32. half is float16, float float32.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = _option(
        "auto",
        "auto follows --dtype; int8 and int4 convert all weights while they are loaded; none keeps "
        "float weights as stored and unpacks quantised ones to bf16.",
        choices=("auto", "none", "int8", "int4"),
    )
    backend: str = _option(
        "native",
        "native, or torch: a slow reference to compare with; needs PyTorch.",
        choices=("native", "torch"),
    )
    num_threads: int | None = _option(
        None,
        "Threads of a step; the CPUs this process may use if not given, and at most four for each.",
    )
    enforce_eager: bool = _option(
        False, "Call the model's operators one by one from Python: slow, for debugging."
    )
    load_format: str = _option(
        "auto", "auto, gguf or safetensors.", choices=("auto", "gguf", "safetensors")
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _DTYPES_OF_C.get(self.dtype, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The KV pool."""

    block_size: int = _option(16, "Tokens per KV block.", choices=(8, 16, 32, 64))
    kv_cache_dtype: str = _option(
        "auto",
        "auto (bfloat16; float32 with --dtype float32), bfloat16, float32, fp8 (fp8_e4m3: half of "
        "bfloat16's bytes) or int8 (half and a 16-bit scale per token and head).",
        choices=("auto", "bfloat16", "float32", "fp8", "fp8_e4m3", "int8"),
    )
    kv_cache_memory_bytes: int | None = _option(
        None,
        "Bytes of the KV pool; if not given, what --max-num-seqs requests of "
        "--max-model-len could use, at most --gpu-memory-utilization of the memory that is free.",
    )
    gpu_memory_utilization: float = _option(
        0.5, "Share of the free memory (of the host, on a CPU) that the KV pool may take."
    )
    enable_prefix_caching: bool = _option(
        True, "Compute equal beginnings of prompts once and share their KV."
    )
    kv_offloading_size: float | None = _option(
        None,
        "GiB of host memory for cached prefixes that go out of use; a replica that is short of "
        "memory copies its cold ones there.",
    )
    kv_reservation: str = _option(
        "full",
        "full reserves a request's whole future and never preempts; optimistic admits on "
        "what is in use and preempts by recomputation.",
        choices=("full", "optimistic"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How steps are made."""

    scheduling_policy: str = _option(
        "auto",
        "fcfs, priority (lower number first), or pace: by deadline, with steps as long as the "
        "targets allow. auto is pace if a target is given, else fcfs.",
        choices=("auto", "fcfs", "priority", "pace"),
    )
    slo_itl_p99_ms: float | None = _option(
        None, "Target of the P99 of gaps between tokens, in milliseconds; held or refused."
    )
    slo_ttft_p99_ms: float | None = _option(
        None, "Target of the P99 of the time to the first token, in milliseconds."
    )
    slo_force: bool = _option(
        False, "Start with a target that is shorter than a single step takes here."
    )
    admission: str = _option(
        "queue",
        "queue lets requests wait; refuse answers 429 at once if a target could not be met.",
        choices=("queue", "refuse"),
    )
    calibrate: bool = _option(
        False, "Measure how long steps take at start-up even if no target is given."
    )
    max_num_seqs: int = _option(
        256, "Most sequences in one step: requests that run at the same time."
    )
    max_num_batched_tokens: int = _option(
        512, "Most tokens computed in one step, prompts and decodes together."
    )
    enable_chunked_prefill: bool = _option(True, "Let a long prompt share steps with decodes.")
    max_num_waiting: int = _option(4096, "Requests that may wait before new ones get 429.")
    default_max_tokens: int = _option(
        2048, "Output limit of a chat that gives none (or what the context leaves)."
    )
    max_logprobs: int = _option(20, "Most logprobs a request may ask for per token.")

    @property
    def has_slo(self) -> bool:
        return self.slo_itl_p99_ms is not None or self.slo_ttft_p99_ms is not None

    @property
    def policy(self) -> str:
        """The policy by name: what `auto` stands for is settled."""
        if self.scheduling_policy != "auto":
            return self.scheduling_policy
        return "pace" if self.has_slo else "fcfs"

    @property
    def models_time(self) -> bool:
        """Whether the length of steps is calibrated and followed."""
        return self.has_slo or self.calibrate or self.policy == "pace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """Ranks that share a model, and replicas of it."""

    tensor_parallel_size: int = _option(
        1, "Ranks that share each layer; sizes that work depend on the model."
    )
    pipeline_parallel_size: int = _option(
        1, "Stages that layers are divided over: more memory and throughput, not a faster token."
    )
    pipeline_depth: str = _option(
        "auto",
        "Steps in flight of a pipeline: so many micro-batches share its stages. auto follows the "
        "load, between 1 and one more than there are stages.",
    )
    pp_layer_partition: str = _option(
        "auto",
        "Layers of each stage, such as 8,8,8,6. auto makes the slowest stage as fast as can be, by "
        "the time that layers and head were measured to take (takt profile), or by a model of it.",
    )
    data_parallel_size: int = _option(
        1,
        "Replicas of the model behind one server, each an engine with tensor-parallel groups and "
        "stages of its own; they share CPUs and KV memory evenly.",
    )
    cooperative_offload: bool = _option(
        True, "Have a replica whose KV pool is nearly full give waiting requests to one with room."
    )
    distributed_executor_backend: str = _option(
        "auto",
        "uni is one process for one rank, mp a process for each rank, inproc a thread for each "
        "(for tests), ray an actor for each, on one host or several. auto is uni for one rank and "
        "mp for more.",
        choices=("auto", "uni", "mp", "inproc", "ray"),
    )
    all_reduce_dtype: str = _option(
        "float32",
        "What tensor-parallel ranks exchange to sum their parts: float32, or rounded values: "
        "bfloat16, float16, int8 (groups of 32 with a scale). auto measures them at each start and "
        "takes a rounded one only if it is faster for every size of step.",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
    )
    strict: bool = _option(False, "Refuse what would only warn, such as more ranks than CPUs.")

    def __post_init__(self) -> None:
        check_choices(self)
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        _check_positive(self, *sizes)
        for name in ("pipeline_depth", "pp_layer_partition"):
            object.__setattr__(self, name, str(getattr(self, name)))  # numbers will do in Python
        self._check_pipeline()
        if self.num_ranks > 1 and self.distributed_executor_backend == "uni":
            raise ConfigError(
                f"--distributed-executor-backend uni runs one rank, not {self.num_ranks}: use mp"
            )

    @property
    def num_ranks(self) -> int:
        """Of each replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def max_pipeline_depth(self) -> int:
        """Most steps that may be in flight."""
        if self.pipeline_depth != "auto":
            return int(self.pipeline_depth)
        stages = self.pipeline_parallel_size
        return stages + 1 if stages > 1 else 1

    @property
    def stage_layers(self) -> tuple[int, ...] | None:
        """Number of layers of each stage, if they are given."""
        if self.pp_layer_partition == "auto":
            return None
        return tuple(int(count) for count in self.pp_layer_partition.split(","))

    def _check_pipeline(self) -> None:
        stages, depth = self.pipeline_parallel_size, self.pipeline_depth
        # More only wait in line: every stage has several steps before it then.
        most = _DEEPEST * stages if stages > 1 else 1
        if depth != "auto" and not (_is_count(depth) and int(depth) <= most):
            why = "" if stages > 1 else ", since there is one stage"
            raise ConfigError(
                f"--pipeline-depth must be auto or a number from 1 to {most}{why}, got {depth!r}"
            )
        partition = self.pp_layer_partition
        counts = partition.split(",")
        if partition != "auto" and (len(counts) != stages or not all(map(_is_count, counts))):
            raise ConfigError(
                f"--pp-layer-partition must be auto or {stages} numbers from 1 on, separated by "
                f"commas: one for each stage of --pipeline-parallel-size; got {partition!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine core needs; sent to it as plain data."""

    model: ModelConfigOptions = field(default_factory=ModelConfigOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)

    def __post_init__(self) -> None:
        for group in (self.model, self.cache, self.scheduler):
            check_choices(group)
        _check_positive(
            self.scheduler,
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_waiting",
            "default_max_tokens",
        )
        _check_positive(self.model, "max_model_len", "num_threads")
        _check_positive(self.cache, "kv_cache_memory_bytes")
        if not 0 < self.cache.gpu_memory_utilization <= 1:
            raise ConfigError(
                "--gpu-memory-utilization must be above 0 and at most 1, "
                f"got {self.cache.gpu_memory_utilization}"
            )
        host_gib = self.cache.kv_offloading_size
        if host_gib is not None and not 0 <= host_gib < float("inf"):
            raise ConfigError(f"--kv-offloading-size must be at least 0, got {host_gib}")
        if self.scheduler.max_logprobs < 0:
            raise ConfigError(
                f"--max-logprobs must be at least 0, got {self.scheduler.max_logprobs}"
            )
        _check_contract(self.scheduler, self.cache)
        if self.scheduler.max_num_batched_tokens < self.scheduler.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.scheduler.max_num_batched_tokens} is less than "
                f"--max-num-seqs {self.scheduler.max_num_seqs}: a step could not hold one token "
                "of each sequence; raise the one or lower the other"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The HTTP side."""

    host: str = _option("127.0.0.1", "Address to listen on.")
    port: int = _option(8000, "Port to listen on; 0 picks a free one and prints it.")
    uds: str | None = _option(None, "Unix domain socket to listen on instead of host and port.")
    api_key: tuple[str, ...] = _option(
        (),
        "Key that clients must send as a bearer token; may be given several times, or in "
        "the environment as TAKT_API_KEY.",
    )
    served_model_name: tuple[str, ...] = _option(
        (), "Names clients may use; the first is reported. The model's own if not given."
    )
    chat_template: str | None = _option(None, "File (or text) of a Jinja chat template.")
    ssl_keyfile: str | None = _option(None, "File of the TLS private key; needs --ssl-certfile.")
    ssl_certfile: str | None = _option(None, "File of the TLS certificate chain; turns HTTPS on.")
    allowed_origins: tuple[str, ...] = _option((), "Origins allowed by CORS; * for all.")
    allow_unknown_fields: bool = _option(
        False, "Answer a request with unknown JSON fields with a warning header, not 400."
    )
    enable_request_id_headers: bool = _option(
        True, "Answer with the request's X-Request-Id, or a new one."
    )
    max_request_bytes: int = _option(16 * 1024 * 1024, "Largest request body, in bytes.")
    stream_buffer_tokens: int = _option(
        1024, "Tokens a slow reader may lag behind before its stream is aborted."
    )
    idempotency_ttl_seconds: float = _option(
        3600.0,
        "Time that an answer is kept for requests that come again with its Idempotency-Key; with 0 "
        "they are only joined while it runs.",
    )
    idempotency_max_bytes: int = _option(
        64 * 1024 * 1024, "Bytes of answers kept so; the oldest go first."
    )
    drain_timeout_seconds: float = _option(
        30.0, "Time that running requests have to end after SIGTERM."
    )
    max_engine_deaths: int = _option(
        3, "Engine deaths in a row, without a step between them, that end the server."
    )
    log_level: str = _option(
        "info", "debug, info, warning or error.", choices=("debug", "info", "warning", "error")
    )
    disable_access_log: bool = _option(False, "Do not log each request.")
    step_log: str | None = _option(
        None, "File that gets the stamps and sizes of each step as a line of JSON."
    )

    def __post_init__(self) -> None:
        check_choices(self)
        _check_positive(
            self,
            "max_request_bytes",
            "stream_buffer_tokens",
            "max_engine_deaths",
            "idempotency_max_bytes",
        )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be between 0 and 65535, got {self.port}")
        for name in ("drain_timeout_seconds", "idempotency_ttl_seconds"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 0, got {value}")
        for name in ("api_key", "served_model_name"):
            if not all(getattr(self, name)):
                raise ConfigError(f"--{name.replace('_', '-')} is empty: give one or leave it out")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= 1


def check_choices(options: Any) -> None:
    """Raises `ConfigError` for a field whose value is none of its choices."""
    for f in fields(options):
        choices = f.metadata.get("choices")
        value = getattr(options, f.name)
        if choices is not None and value not in choices:
            known = ", ".join(str(c) for c in choices)
            raise ConfigError(f"--{f.name.replace('_', '-')} {value!r} is not one of: {known}")


def _check_contract(scheduler: SchedulerOptions, cache: CacheOptions) -> None:
    for name in ("slo_itl_p99_ms", "slo_ttft_p99_ms"):
        value = getattr(scheduler, name)
        if value is not None and not 0 < value < MAX_TARGET_MS:
            raise ConfigError(
                f"--{name.replace('_', '-')} must be a number of milliseconds above 0 and below "
                f"{MAX_TARGET_MS:g}, got {value}"
            )
    if scheduler.policy != "pace":
        if scheduler.admission == "refuse":
            raise ConfigError(
                "--admission refuse needs predictions: give --slo-itl-p99-ms or --slo-ttft-p99-ms "
                "with --scheduling-policy pace"
            )
        return
    if not scheduler.enable_chunked_prefill:
        raise ConfigError("--scheduling-policy pace cuts prompts: leave chunked prefill enabled")
    if scheduler.slo_itl_p99_ms is not None and cache.kv_reservation != "full":
        raise ConfigError(
            f"--kv-reservation {cache.kv_reservation} preempts running requests, whose gaps "
            "--slo-itl-p99-ms promises: use --kv-reservation full"
        )


def _check_positive(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def cache_home() -> Path:
    """Where models and derived files are kept: $TAKT_CACHE, or ~/.cache/takt."""
    return Path(os.environ.get("TAKT_CACHE") or Path.home() / ".cache" / "takt")
