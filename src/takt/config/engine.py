"""What is loaded, and how it is computed, cached and scheduled."""

from __future__ import annotations

from dataclasses import dataclass, field

from takt.config.option import check_choices, check_positive, option
from takt.config.parallel import ParallelOptions
from takt.errors import ConfigError

MAX_TARGET_MS = 1e9
"""Targets beyond it, some eleven days, promise nothing."""


_DTYPES_OF_C = {"half": "float16", "float": "float32"}
"""Further names of types, as vLLM and PyTorch have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfigOptions:
    """What to load and how to compute."""

    model: str = option("smollm2-135m", "Alias, Hub id, GGUF file or Hugging Face directory.")
    tokenizer: str | None = option(None, "Path of a tokenizer.json to use instead of the model's.")
    max_model_len: int | None = option(
        None, "Longest prompt plus output, in tokens; the model's own limit if not given."
    )
    dtype: str = option(
        "auto",
        "auto keeps quantised weights and makes float weights int8, both with int8 activations; "
        "float32 computes everything in fp32; bfloat16 rounds weights and activations to bf16; "
        "float16 keeps weights in fp16 and activations in fp32. half is float16, float float32.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = option(
        "auto",
        "auto follows --dtype; int8 and int4 convert all weights while they are loaded; none keeps "
        "float weights as stored and unpacks quantised ones to bf16.",
        choices=("auto", "none", "int8", "int4"),
    )
    prefill_activation_dtype: str = option(
        "auto",
        "What products with quantised weights take for tokens of a prompt: int8, or bfloat16. auto "
        "is bfloat16 on a CPU with a matrix unit for it (AMX), else int8, as on Ray. Generated "
        "tokens in int8 do not share KV with prompts in bfloat16.",
        choices=("auto", "int8", "bfloat16"),
    )
    decode_activation_dtype: str = option(
        "int8",
        "What products with quantised weights take for generated tokens: int8, or bfloat16, which "
        "prompts have to be too. That is for servers that always have many streams: with AMX 32 "
        "are some 10 % faster, one alone half as fast.",
        choices=("int8", "bfloat16"),
    )
    backend: str = option(
        "native",
        "native, or torch: a slow reference to compare with; needs PyTorch.",
        choices=("native", "torch"),
    )
    num_threads: int | None = option(
        None,
        "Threads of a step; the CPUs this process may use if not given, and at most four for each.",
    )
    enforce_eager: bool = option(
        False, "Call the model's operators one by one from Python: slow, for debugging."
    )
    load_format: str = option(
        "auto", "auto, gguf or safetensors.", choices=("auto", "gguf", "safetensors")
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _DTYPES_OF_C.get(self.dtype, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The KV pool."""

    block_size: int = option(16, "Tokens per KV block.", choices=(8, 16, 32, 64))
    kv_cache_dtype: str = option(
        "auto",
        "auto (int8; with --dtype, --quantization none or --backend torch bfloat16, with --dtype "
        "float32 float32), "
        "bfloat16, float32, fp8 (fp8_e4m3: half of bfloat16's bytes) or int8 (half and a 16-bit "
        "scale per token and head).",
        choices=("auto", "bfloat16", "float32", "fp8", "fp8_e4m3", "int8"),
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "Bytes of the KV pool; if not given, what --max-num-seqs requests of "
        "--max-model-len could use, at most --gpu-memory-utilization of the memory that is free.",
    )
    gpu_memory_utilization: float = option(
        0.5, "Share of the free memory (of the host, on a CPU) that the KV pool may take."
    )
    enable_prefix_caching: bool = option(
        True, "Compute equal beginnings of prompts once and share their KV."
    )
    kv_offloading_size: float | None = option(
        None,
        "GiB of host memory for cached prefixes that go out of use; a replica that is short of "
        "memory copies its cold ones there.",
    )
    kv_reservation: str = option(
        "full",
        "full reserves a request's whole future and never preempts; optimistic admits on "
        "what is in use and preempts by recomputation.",
        choices=("full", "optimistic"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How steps are made."""

    scheduling_policy: str = option(
        "auto",
        "fcfs, priority (lower number first), or pace: by deadline, with steps as long as the "
        "targets allow. auto is pace if a target is given, else fcfs.",
        choices=("auto", "fcfs", "priority", "pace"),
    )
    slo_itl_p99_ms: float | None = option(
        None, "Target of the P99 of gaps between tokens, in milliseconds; held or refused."
    )
    slo_ttft_p99_ms: float | None = option(
        None, "Target of the P99 of the time to the first token, in milliseconds."
    )
    slo_force: bool = option(
        False, "Start with a target that is shorter than a single step takes here."
    )
    admission: str = option(
        "queue",
        "queue lets requests wait; refuse answers 429 at once if a target could not be met.",
        choices=("queue", "refuse"),
    )
    calibrate: bool = option(
        False, "Measure how long steps take at start-up even if no target is given."
    )
    max_num_seqs: int = option(
        256, "Most sequences in one step: requests that run at the same time."
    )
    max_num_batched_tokens: int = option(
        512, "Most tokens computed in one step, prompts and decodes together."
    )
    enable_chunked_prefill: bool = option(True, "Let a long prompt share steps with decodes.")
    max_num_waiting: int = option(4096, "Requests that may wait before new ones get 429.")
    default_max_tokens: int = option(
        2048, "Output limit of a chat that gives none (or what the context leaves)."
    )
    max_logprobs: int = option(20, "Most logprobs a request may ask for per token.")

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
class EngineConfig:
    """All that an engine core needs; sent to it as plain data."""

    model: ModelConfigOptions = field(default_factory=ModelConfigOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)

    def __post_init__(self) -> None:
        for group in (self.model, self.cache, self.scheduler):
            check_choices(group)
        check_positive(
            self.scheduler,
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_waiting",
            "default_max_tokens",
        )
        check_positive(self.model, "max_model_len", "num_threads")
        check_positive(self.cache, "kv_cache_memory_bytes")
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
