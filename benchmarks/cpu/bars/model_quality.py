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
    # model, KV dtype, perplexity, ratio to fp32, bytes, seconds
    rows = [line.split() for line in run.stdout.splitlines()[1:-1]]
    figures = [
        Figure(Path(row[0]).name, float(row[3]), "x fp32", MAX_RATIO)
        for row in rows
        if row[1] == "auto"
    ]
    return BarResult(
        figures, {f"{Path(row[0]).name} perplexity, KV {row[1]}": float(row[2]) for row in rows}
    )
