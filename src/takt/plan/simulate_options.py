"""What `takt simulate` is asked. A field's metadata is its flag's help."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from takt.plan.simulation_request import SimulationRequest

KV_DTYPE_HELP = "KV cache: auto (16 bits; int8 beside a file's own types), bf16, fp8 or int8."

_FIELD_OF = {
    "qps": "requests_per_s",
    "isl": "prompt_tokens",
    "osl": "output_tokens",
    "isl_variation": "prompt_variation",
    "osl_variation": "output_variation",
}
"""Flags that a request has under other names."""


def _option(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """One topology under one load, and how often it is repeated."""

    qps: float | None = _option(None, "Requests per second, Poisson.")
    trace: str | None = _option(None, "JSON lines, or a table as Azure's or BurstGPT's.")
    rate_factor: float = _option(1.0, "Replay a trace so many times as fast.")
    hardware: str = _option("1xH200", "Number and kind of devices, such as 16xA100-80G.")
    hardware_file: str | None = _option(None, "TOML file that describes a further device.")
    isl: int = _option(512, "Mean tokens of a prompt.")
    osl: int = _option(128, "Mean tokens of an output.")
    isl_variation: float = _option(0.0, "Coefficient of variation; 0 is a fixed length.")
    osl_variation: float = _option(0.0, "Coefficient of variation; 0 is a fixed length.")
    dtype: str = _option(
        "auto", "Weights: fp16, fp8, int8, int4, packed (as in a GGUF); auto if not given."
    )
    kv_cache_dtype: str = _option("auto", KV_DTYPE_HELP)
    tensor_parallel_size: int = _option(1, "Ranks that share each matrix.")
    pipeline_parallel_size: int = _option(1, "Stages that share the layers.")
    data_parallel_size: int = _option(1, "Replicas that share the requests.")
    max_num_seqs: int = _option(256, "Sequences in one step.")
    max_num_batched_tokens: int = _option(512, "Tokens in one step.")
    kv_reservation: str = _option("full", "full or optimistic.")
    policy: str = _option("auto", "fcfs, priority, pace, or auto: pace if a target is given.")
    slo_itl_p99_ms: float | None = _option(None, "Target of the P99 of gaps.")
    slo_ttft_p99_ms: float | None = _option(None, "Target of the P99 to the first token.")
    admission: str = _option("queue", "queue, or refuse: who would miss a target is not served.")
    kv_io: str = _option("none", "Each prompt's KV comes from the host: none, sync, async or both.")
    num_requests: int = _option(2000, "Requests of each replication.")
    replications: int = _option(8, "Independent repetitions.")
    step_noise: float = _option(0.05, "Coefficient of variation of steps.")
    num_processes: int | None = _option(None, "All CPUs if not given.")
    seed: int = _option(0, "Makes a run repeatable.")

    def request(self, model: str) -> SimulationRequest:
        """What is simulated of `model`; how often is not part of it."""
        from takt.plan.simulation_request import SimulationRequest

        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["replications"], values["num_processes"]
        for name in ("trace", "hardware_file"):
            values[name] = None if values[name] is None else Path(values[name])
        return SimulationRequest(
            model=model, **{_FIELD_OF.get(name, name): value for name, value in values.items()}
        )
