"""Each precision policy of a model: gaps between tokens, jitter, bytes of weights, perplexity.

    python -m benchmarks.precision [--model smollm2-135m] [--quick]

The engine runs in this process, one stream after a prompt, the policies in turns so that a slow
minute of the machine meets them all. Perplexity is that of benchmarks/perplexity.py, its ratio to
the float32 policy. Exits with 1 if `auto` or `int8` lose more than 1 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from benchmarks.perplexity import MAX_LOSS, measure

from takt import LLM, SamplingParams

POLICIES: dict[str, dict[str, str]] = {
    "auto": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
}
MUST_HOLD = ("auto", "int8")
PROMPT_TOKENS = 256


@dataclass
class Policy:
    options: dict[str, str]
    gaps_ms: list[float] = field(default_factory=list)
    weight_bytes: int = 0
    perplexity: float = 0.0


def measure_gaps(model: str, policy: Policy, num_tokens: int) -> None:
    """Adds the gaps of one stream; the model is loaded for it and closed again."""
    prompt = [(31 * i + 7) % 20_000 for i in range(PROMPT_TOKENS)]
    params = SamplingParams(max_tokens=num_tokens + 8, temperature=0.0, ignore_eos=True)
    with LLM(model, max_model_len=PROMPT_TOKENS + num_tokens + 64, **policy.options) as llm:
        policy.weight_bytes = llm.weight_bytes
        stamps = [time.perf_counter_ns() for _ in llm.stream(prompt, params)]
    # A token without text of its own shares the next one's stamp; the first steps warm caches up.
    policy.gaps_ms += (np.diff(np.array(stamps[4:])) / 1e6).tolist()


def run(model: str, names: Sequence[str], is_quick: bool) -> dict[str, Policy]:
    policies = {name: Policy(POLICIES[name]) for name in names}
    for _ in range(1 if is_quick else 4):
        for policy in policies.values():
            measure_gaps(model, policy, 16 if is_quick else 256)
    tokens, context = (256, 129) if is_quick else (8192, 1024)
    for policy in policies.values():
        policy.perplexity = measure(model, tokens, context, **policy.options).perplexity
    return policies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quick", action="store_true", help="only show that all of it runs")
    parser.add_argument("policies", nargs="*", default=[*POLICIES], metavar="POLICY")
    arguments = parser.parse_args()
    unknown = set(arguments.policies) - set(POLICIES)
    if unknown:
        parser.error(f"no such policy: {', '.join(sorted(unknown))}; known: {', '.join(POLICIES)}")
    policies = run(arguments.model, arguments.policies, arguments.quick)
    base = policies.get("float32")
    print(
        f"{'policy':10} {'P50 ms':>8} {'P99 ms':>8} {'jitter ms':>10} {'weights MB':>11} "
        f"{'perplexity':>11} {'x float32':>10}"
    )
    failed = False
    for name, policy in policies.items():
        p50, p99 = np.percentile(policy.gaps_ms, [50, 99])
        ratio = policy.perplexity / base.perplexity if base is not None else float("nan")
        verdict = ""
        if name in MUST_HOLD and base is not None:
            missed = ratio > 1 + MAX_LOSS
            failed |= missed
            verdict = "  missed" if missed else "  held"
        print(
            f"{name:10} {p50:8.2f} {p99:8.2f} {np.std(policy.gaps_ms):10.2f} "
            f"{policy.weight_bytes / 1e6:11.1f} {policy.perplexity:11.4f} {ratio:10.5f}{verdict}"
        )
    return 1 if failed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
