"""Perplexity of a model as served by default, against fp32 arithmetic on the same weights.

    python benchmarks/perplexity.py [MODEL ...] [--tokens 8192] [--context 1024]

The text is cut into windows of `--context` tokens; every token but a window's first is scored given
the tokens before it in the window. Exits with 1 if the default's perplexity is more than 1 % above
that of fp32.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from takt import LLM, SamplingParams

TEXT = Path(__file__).parent.parent / "tests" / "data" / "opticks.txt"
MAX_LOSS = 0.01
DEFAULTS = {"dtype": "auto", "kv_cache_dtype": "auto", "backend": "native"}
FP32 = {"dtype": "float32", "kv_cache_dtype": "float32"}


def perplexity(model: str, num_tokens: int, context: int, **options: str) -> float:
    """exp of the mean negative logprob, in one engine that is closed again."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    with LLM(model, max_model_len=context + 1, **options) as llm:
        tokens = llm.tokenizer.encode(TEXT.read_text(), parse_special=False, add_bos=False)
        if len(tokens) < num_tokens:
            raise SystemExit(f"the text has {len(tokens)} tokens, fewer than {num_tokens}")
        bos = [llm.tokenizer.bos_token_id] if llm.tokenizer.adds_bos else []
        size = context - len(bos)
        windows = [bos + tokens[i : i + size] for i in range(0, num_tokens - 1, size)]
        total, count = 0.0, 0
        # One at a time: scoring a window asks for a row of logits per token.
        for window in windows:
            (completion,) = llm.generate([window], params)
            entries = [e for e in completion.prompt_logprobs or [] if e is not None]
            assert len(entries) == len(window) - 1
            total -= sum(entry.logprob for entry in entries)
            count += len(entries)
    return math.exp(total / count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--fp32-backend", default="native", choices=("native", "torch"), help="of the comparison"
    )
    arguments = parser.parse_args()
    is_worse = False
    print(f"{'model':14} {'default':>9} {'fp32':>9} {'ratio':>8} {'seconds':>8}")
    for model in arguments.models:
        start = time.monotonic()
        default = perplexity(model, arguments.tokens, arguments.context, **DEFAULTS)
        fp32 = perplexity(
            model, arguments.tokens, arguments.context, backend=arguments.fp32_backend, **FP32
        )
        ratio, seconds = default / fp32, time.monotonic() - start
        print(f"{model:14} {default:9.4f} {fp32:9.4f} {ratio:8.5f} {seconds:8.1f}", flush=True)
        is_worse |= ratio > 1 + MAX_LOSS
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
