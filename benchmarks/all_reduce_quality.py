"""Perplexity of two ranks for each type that an all-reduce may exchange, against float32.

    python -m benchmarks.all_reduce_quality [MODEL] [--ranks 2] [--tokens 8192] [--context 1024]

Everything else is the model's default; the text and its windows are those of `perplexity.py`. No
bar: rounding is chosen by its user, and this is what it costs. `--quick` shows that it runs.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.perplexity import measure

DTYPES = ("float32", "float16", "bfloat16", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="gemma3-270m")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--quick", action="store_true", help="a few tokens, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.context = 128, 128
    print(f"{options.model}, {options.ranks} ranks, {options.tokens} tokens in windows of ", end="")
    print(f"{options.context}\n{'all-reduce':>10} {'perplexity':>10} {'/ float32':>9} s")
    exact = 0.0
    for dtype in DTYPES:
        start = time.monotonic()
        value = measure(
            options.model,
            options.tokens,
            options.context,
            tensor_parallel_size=options.ranks,
            all_reduce_dtype=dtype,
        ).perplexity
        exact = exact or value
        seconds = time.monotonic() - start
        print(f"{dtype:>10} {value:10.4f} {value / exact:9.5f} {seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
