"""Perplexity of a model as served by default and with other KV caches, against fp32.

    python benchmarks/perplexity.py [MODEL ...] [--tokens 8192] [--context 1024] [--quick]

The text is cut into windows of `--context` tokens; every token but a window's first is scored given
the tokens before it in the window. fp32 is arithmetic and KV cache in fp32 on the same weights.
What is scored is a prompt; where those take bf16 activations, "generated" is the same text computed
as generated tokens are. Exits with 1 if the perplexity of either is more than 1 % above that of
fp32; the other caches' loss is shown beside their bytes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takt import LLM, SamplingParams

TEXT = Path(__file__).parent.parent / "tests" / "data" / "opticks.txt"
MAX_LOSS = 0.01
FP32 = {"dtype": "float32", "kv_cache_dtype": "float32"}
DEFAULTS = {"prompts": {}, "generated": {"prefill_activation_dtype": "int8"}}
KV_DTYPES = ("bfloat16", "fp8")


@dataclass(frozen=True, slots=True)
class Measured:
    perplexity: float
    kv_bytes_per_token: float


def measure(model: str, num_tokens: int, context: int, **options: Any) -> Measured:
    """exp of the mean negative logprob, in one engine that is closed again."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    with LLM(model, max_model_len=context + 1, **options) as llm:
        tokens = llm.tokenizer.encode(TEXT.read_text(), parse_special=False, add_bos=False)
        if len(tokens) < num_tokens:
            raise SystemExit(f"the text has {len(tokens)} tokens, fewer than {num_tokens}")
        bos = [llm.tokenizer.bos_token_id] if llm.tokenizer.adds_bos else []
        size = context - len(bos)
        windows = [bos + tokens[i : i + size] for i in range(0, num_tokens - 1, size)]
        kv = llm.kv_cache
        total, count = 0.0, 0
        # One at a time: scoring a window asks for a row of logits per token.
        for window in windows:
            (completion,) = llm.generate([window], params)
            entries = [e for e in completion.prompt_logprobs or [] if e is not None]
            assert len(entries) == len(window) - 1
            total -= sum(entry.logprob for entry in entries)
            count += len(entries)
    block_bytes = sum(kv.block_bytes(group) for group in range(len(kv.groups)))
    return Measured(math.exp(total / count), block_bytes / kv.block_size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--fp32-backend", default="native", choices=("native", "torch"), help="of the comparison"
    )
    parser.add_argument("--quick", action="store_true", help="a few tokens, to see that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.models, arguments.tokens, arguments.context = ["smollm2-135m"], 256, 128
    is_worse = False
    print(f"{'model':14} {'what':>9} {'perplexity':>10} {'/ fp32':>8} {'KV bytes/token':>14} s")
    for model in arguments.models:
        fp32 = report(model, "fp32", 1.0, arguments, backend=arguments.fp32_backend, **FP32)
        for name, options in DEFAULTS.items():
            is_worse |= report(model, name, fp32, arguments, **options) > (1 + MAX_LOSS) * fp32
        for dtype in KV_DTYPES:
            report(model, f"KV {dtype}", fp32, arguments, kv_cache_dtype=dtype)
    verdict = "missed" if is_worse else "met"
    print(f"default at most {MAX_LOSS:.0%} above fp32: {verdict}")
    return 1 if is_worse else 0


def report(
    model: str, name: str, fp32: float, arguments: argparse.Namespace, **options: str
) -> float:
    """Prints a row of the table and gives its perplexity; `fp32` is 1 for fp32's own."""
    start = time.monotonic()
    measured = measure(model, arguments.tokens, arguments.context, **options)
    value, seconds = measured.perplexity, time.monotonic() - start
    ratio = 1.0 if name == "fp32" else value / fp32
    print(
        f"{model:14} {name:>9} {value:10.4f} {ratio:8.5f} {measured.kv_bytes_per_token:14.0f} "
        f"{seconds:.1f}",
        flush=True,
    )
    return value


if __name__ == "__main__":
    sys.exit(main())
