"""What `takt verify` is asked. A field's metadata is its flag's help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from takt.config import check_choices
from takt.plan.simulate_options import KV_DTYPE_HELP


def _option(default: Any, help_text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """One verification, as it is asked for."""

    plan: str | None = _option(None, "Output of takt plan --json; - is standard input.")
    url: str | None = _option(
        None, "An OpenAI-compatible service that runs; one is started here if not given."
    )
    by: str = _option(
        "auto",
        "Predict by the plan's device model, by steps that are measured here first, or by steps of "
        "the load itself, where the machine's speed is given and the plan's model is judged; auto "
        "is the plan if there is one, else steps.",
        choices=("auto", "plan", "steps", "load"),
    )
    load: float | None = _option(
        None, "Share of the measured capacity to offer, within 0 and 1, in place of --qps."
    )
    qps: float | None = _option(None, "Requests per second, Poisson; the plan's if not given.")
    hardware: str | None = _option(None, "Makes the plan here, for devices such as 1xH200.")
    hardware_file: str | None = _option(None, "TOML file that describes a further device.")
    isl: int = _option(512, "Mean tokens of a prompt, without a plan; likewise --osl.")
    osl: int = _option(128, "Mean tokens of an output.")
    isl_variation: float = _option(0.0, "Coefficient of variation; 0 is a fixed length.")
    osl_variation: float = _option(0.0, "Likewise of outputs.")
    slo_itl_p99_ms: float | None = _option(None, "Target of gaps; the plan's if not given.")
    slo_ttft_p99_ms: float | None = _option(None, "Target to the first token; likewise.")
    slo_e2e_p99_ms: float | None = _option(None, "Target to the last token; likewise.")
    dtype: str = _option("auto", "Weights of a plan that is made here, as takt plan has them.")
    kv_cache_dtype: str = _option("auto", f"Of a plan that is made here. {KV_DTYPE_HELP}")
    max_num_seqs: int = _option(256, "Sequences in one step, without a plan.")
    max_num_batched_tokens: int = _option(512, "Tokens in one step, without a plan.")
    serve_flags: str = _option("", "Further flags of takt serve, in one argument.")
    num_requests: int = _option(1000, "Requests to measure.", short=("-n",))
    tolerance: float = _option(0.10, "Share by which a P99 may exceed its prediction.")
    served_model_name: str | None = _option(
        None, "Name in the requests; the server's first if not given."
    )
    endpoint: str = _option("completions", "completions or chat.", choices=("completions", "chat"))
    api_key: str | None = _option(None, "Bearer token; OPENAI_API_KEY if not given.")
    seed: int = _option(0, "Makes arrivals and prompts repeatable.")
    json: str | None = _option(None, "File for the figures as JSON; - is standard output.")

    def __post_init__(self) -> None:
        check_choices(self)
