"""Perplexity of the default of each model against fp32 arithmetic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.cpu.bar import BarResult, BenchSetting, Figure

SCRIPT = Path(__file__).parent.parent.parent / "perplexity.py"
MAX_RATIO = 1.01


def measure(setting: BenchSetting) -> BarResult:
    """Runs the perplexity benchmark; its table has a line per model and type of the KV cache."""
    tokens = str(setting.scaled(8192, 512))
    context = str(setting.scaled(1024, 256))
    command = [sys.executable, str(SCRIPT), setting.model]
    if not setting.is_quick:
        command.append("gemma3-270m")
    command += ["--tokens", tokens, "--context", context]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        return BarResult.not_measured(f"it ended with {run.returncode}: {run.stderr[-300:]}")
    # model, what (of one word or two), perplexity, ratio to fp32, bytes, seconds
    rows = [line.split() for line in run.stdout.splitlines()[1:-1]]
    names = [f"{Path(row[0]).name} {' '.join(row[1:-4])}" for row in rows]
    figures = [
        Figure(name, float(row[-3]), "x fp32", MAX_RATIO)
        for name, row in zip(names, rows, strict=True)
        if row[1] in ("prompts", "generated")
    ]
    return BarResult(
        figures,
        {f"{name}, perplexity": float(row[-4]) for name, row in zip(names, rows, strict=True)},
    )
