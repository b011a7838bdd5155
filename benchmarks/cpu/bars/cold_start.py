"""From the start of `takt generate` to its first token."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
from benchmarks.cpu.bar import BarResult, BenchSetting, Figure

PROMPT = "The capital of France is"


def measure(setting: BenchSetting) -> BarResult:
    """A new process each time, the model's file in the page cache; the median."""
    seconds = [_first_token_s(setting.model) for _ in range(setting.scaled(7, 2))]
    return BarResult(
        [Figure("time to first token", float(np.median(seconds)), "s", 2.0, 1.0)],
        {"slowest s": max(seconds)},
    )


def _first_token_s(model: str) -> float:
    """The echoed prompt is held until the first token flushes it, even one without text."""
    program = "from takt.cli.main import main; main()"
    command = [sys.executable, "-c", program, "generate", model, PROMPT, "--max-tokens", "4"]
    start_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read1(1 << 16)
        elapsed_s = time.monotonic() - start_s
        process.communicate()
    if process.returncode or not first:
        raise RuntimeError(f"takt generate wrote {first!r} and ended with {process.returncode}")
    return elapsed_s
