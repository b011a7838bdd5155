"""A server of this machine against the simulation of its own arrivals with its own step times.

Judged is the simulation whose model and residuals come from alternate stretches of the load, with
the machine's speed as it was: what calibrations before and after it predict is printed beside.
"""

from __future__ import annotations

import sys

from rich.console import Console

from takt.plan.load_estimate import StepLimits
from takt.plan.workload import Workload
from takt.verify.comparison import Comparison
from takt.verify.report import print_comparison
from takt.verify.verify import Request, verify

LOAD = 0.85
NUM_REQUESTS = 2000
"""A tenth of them warms up. More than 1,000 would do; but the P99 of so few first tokens is known
to 10 % only, as much as the bar."""

QUICK_REQUESTS = 60
LIMITS = StepLimits(max_num_batched_tokens=256, max_num_seqs=32)
WORKLOAD = Workload(200, 50, 1.0, prompt_variation=0.5, output_variation=0.5)
QUICK_WORKLOAD = Workload(40, 8, 1.0, prompt_variation=0.5, output_variation=0.5)
_STAGES = 10


def verify_here(model: str, *, is_quick: bool) -> Comparison:
    request = Request(
        workload=QUICK_WORKLOAD if is_quick else WORKLOAD,
        targets=None,
        limits=LIMITS,
        serve_arguments=(
            *(model, "--max-num-seqs", str(LIMITS.max_num_seqs)),
            *("--max-num-batched-tokens", str(LIMITS.max_num_batched_tokens)),
        ),
        by_load=True,
        calibrates_again=True,
        load=LOAD,
        num_requests=QUICK_REQUESTS if is_quick else NUM_REQUESTS,
        calibration_rounds=0.3 if is_quick else 2.0,
    )
    found = verify(request, _show)
    print_comparison(found, Console(highlight=False, width=120))
    return found


def _show(stage: str, done: int, total: int) -> None:
    if done % max(1, total // _STAGES) == 0:
        print(f"{stage}: {done} of {total}", file=sys.stderr, flush=True)
