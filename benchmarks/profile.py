"""Writes docs/profile.md: where a decode step and a prompt's step spend their time.

    python -m benchmarks.profile                    # smollm2-135m; the page in docs
    python -m benchmarks.profile --quick --out -    # few steps, to standard output

Run `takt topo --measure` before it, and both on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import subprocess
import sys
from pathlib import Path

from takt.cli.profile import ProfileRequest, peaks_for, run_profile
from takt.config import EngineConfig, ModelConfigOptions
from takt.observe.profile_tables import Peaks, markdown_table, profile_tables, summary
from takt.observe.step_profile import StepProfile
from takt.parallel.cpu_name import cpu_name
from takt.plan.this_machine import read_figures

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "profile.md"

_INTRODUCTION = """\
# Where a step's time goes

`takt profile MODEL` times every instruction of a step, thread by thread, on a real engine core.
This page is written by `make profile`; do not edit it by hand.

- An instruction's time runs from the end of the one before it to its own end, so times add up to
  the step. P50 and P99 are of one instruction of the kind; the rest is the mean of a step.
- *waiting* is the share of all threads' time in which they had no tile: others were not done, or
  the core was away.
- *MB* are packed weights and KV, each counted once; *of reading* is against the rate at which all
  threads read a working set of the step's size, *of int8 peak* against register products, both from
  `takt topo --measure`.
- Taking times costs two looks at the clock per tile; without a profile it costs one test.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quick", action="store_true", help="few steps: shows that all of it runs")
    parser.add_argument("--out", default=str(PAGE), help="file to write, or - for standard output")
    options = parser.parse_args()
    request = ProfileRequest(num_steps=10 if options.quick else 300)
    figures = read_figures()
    config = EngineConfig(model=ModelConfigOptions(model=options.model))
    parts = [_INTRODUCTION, _setting(options.model, options.quick)]
    for name, profile in run_profile(config, request):
        parts.append(_section(name, profile, peaks_for(profile, figures)))
    text = "\n".join(parts)
    if options.out == "-":
        sys.stdout.write(text)
    else:
        Path(options.out).write_text(text)


def _setting(model: str, is_quick: bool) -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    commit = run.stdout.strip() or "unknown"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    quick = " A quick run beside other work: it shows the form, and no figure of it counts."
    return (
        f"Measured on {cpu_name()} ({platform.machine()}), `{model}`, commit {commit}, {day}."
        f"{quick if is_quick else ''}\n"
    )


def _section(name: str, profile: StepProfile, peaks: Peaks | None) -> str:
    lines = [f"## {name}", "", summary(profile) + "."]
    if peaks is None:
        lines.append("No peaks were measured: `takt topo --measure`.")
    else:
        lines.append(
            f"Peaks: {peaks.read_bytes_s / 1e9:.1f} GB/s read, {peaks.int8_ops_s / 1e9:.0f} GOP/s "
            f"of `{peaks.int8_instruction}`."
        )
    for table in profile_tables(profile, peaks):
        lines += ["", f"### {table.title}", "", markdown_table(table)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
