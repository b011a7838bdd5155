"""Loading: the packed path against weights expanded to bf16 and to f32.

    python -m benchmarks.loading [--model smollm2-135m] [--quick]

Each run is a process of its own, from its start to the first token of `takt generate`, the model's
file in the page cache. Peak memory is that process's largest resident set, bytes read those that
its system calls returned (rchar in /proc/self/io), imports included. Exits with 1 if the packed
path is not both faster and smaller than the expanded ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import numpy as np

PATHS: dict[str, list[str]] = {
    "packed": [],
    "expanded bf16": ["--dtype", "bfloat16"],
    "expanded f32": ["--dtype", "float32"],
}

_PROGRAM = """
import json, resource, sys
from takt.cli.main import main
try:
    main()
finally:
    fields = dict(line.split(": ") for line in open("/proc/self/io"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak": peak, "read": int(fields["rchar"])}), file=sys.stderr)
"""


def run_once(model: str, options: list[str]) -> tuple[float, int, int]:
    """Seconds to the first token, peak bytes, bytes read."""
    command = [sys.executable, "-c", _PROGRAM, "generate", model, "The capital of France is"]
    command += ["--max-tokens", "2", "--max-model-len", "512", *options]
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read1(1 << 16)  # the prompt is held until the first token
        seconds = time.monotonic() - start
        _, errors = process.communicate()
    if process.returncode or not first:
        raise RuntimeError(f"takt generate ended with {process.returncode}: {errors[-300:]!r}")
    report = json.loads(errors.decode().strip().splitlines()[-1])
    return seconds, report["peak"], report["read"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quick", action="store_true", help="only show that all of it runs")
    arguments = parser.parse_args()
    runs: dict[str, list[tuple[float, int, int]]] = {name: [] for name in PATHS}
    for _ in range(1 if arguments.quick else 7):
        for name, options in PATHS.items():
            runs[name].append(run_once(arguments.model, options))
    print(f"{'path':14} {'first token s':>14} {'peak MB':>9} {'read MB':>9}")
    medians = {name: np.median(np.array(values), axis=0) for name, values in runs.items()}
    for name, (seconds, peak, read) in medians.items():
        print(f"{name:14} {seconds:14.2f} {peak / 1e6:9.1f} {read / 1e6:9.1f}")
    packed = medians["packed"]
    missed = [n for n, m in medians.items() if n != "packed" and not (packed[:2] < m[:2]).all()]
    print(
        "packed is faster and smaller: " + (f"missed ({', '.join(missed)})" if missed else "held")
    )
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
