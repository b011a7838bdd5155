"""A simulated server's targets: who is let in, what it learns of its steps, and who was served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.result import Floats
from takt.scheduler.admission import Admission
from takt.scheduler.ask import Ask
from takt.scheduler.base import Scheduler
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.pace import PaceScheduler
from takt.scheduler.request import Request
from takt.scheduler.slo import SLO
from takt.scheduler.step_time import StepFeatures

LATE_SHARE = 0.01
"""Of a request's gaps: what a P99 leaves."""


class LaneContract:
    """What a real server does beside its scheduler, for one lane."""

    def __init__(self, slo: SLO, learned: LearnedStepTime | None, *, refuses: bool) -> None:
        self._slo = slo
        self._learned = learned
        self._admission = Admission(slo, refuses=True) if refuses else None
        self._num_taken = 0
        self._num_late: Counter[int] = Counter()
        self._tightest_ns = slo.itl_ns
        self._let_in: dict[int, SLO] = {}
        self.refused: set[int] = set()

    def lets_in(self, index: int, request: Request) -> bool:
        """Asks admission, which knows what the last step left."""
        if self._admission is not None:
            ask = Ask(
                request_id=request.request_id,
                num_prompt_tokens=request.num_prompt_tokens,
                max_tokens=request.max_tokens,
                num_seqs=1,
                priority=request.priority,
                slo=request.slo,
            )
            if self._admission.check([ask], request.arrival_ns) is not None:
                self.refused.add(index)
                return False
            self._admission.sent(ask, request.arrival_ns)
        self._num_taken += 1
        self._let_in[index] = target = request.slo.within(self._slo)
        if target.itl_ns is not None:
            self._tightest_ns = min(target.itl_ns, self._tightest_ns or target.itl_ns)
        return True

    def end_step(
        self, scheduler: Scheduler, features: StepFeatures, duration_ns: float, end_ns: int
    ) -> None:
        if self._learned is not None:
            self._learned.observe(features, duration_ns)
        if self._admission is not None and isinstance(scheduler, PaceScheduler):
            self._admission.take(scheduler.load(self._num_taken, end_ns, with_jobs=True))

    def is_late(self, gap_ns: float) -> bool:
        """Whether some stream may have missed its target."""
        return self._tightest_ns is not None and gap_ns > self._tightest_ns

    def note_gap(self, index: int, request: Request, gap_ns: float) -> None:
        target_ns = request.slo.within(self._slo).itl_ns
        if target_ns is not None and gap_ns > target_ns:
            self._num_late[index] += 1

    def count_met(self, arrivals: Sequence[Arrival], first: int, first_token_ns: Floats) -> int:
        """Of the lane's requests from the arrival `first` on, those that had what was promised."""
        num_met = 0
        for index, target in self._let_in.items():
            arrival = arrivals[index]
            ttft_ns = first_token_ns[index] - arrival.time_ns
            in_time = target.ttft_ns is None or ttft_ns <= target.ttft_ns
            num_gaps = arrival.num_output_tokens - 1
            if index >= first and in_time and self._num_late[index] <= LATE_SHARE * num_gaps:
                num_met += 1
        return num_met
