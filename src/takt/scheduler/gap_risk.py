"""Which gaps were late, of all streams and of each, and how much the next step may risk."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from takt.scheduler.prefill_budget import StepBound, StepPredictor
from takt.scheduler.request import Request
from takt.scheduler.risk_budget import LATE_SHARE, RiskBudget
from takt.scheduler.step_time import StepFeatures

HEADROOM = 0.95
"""Share of an ITL target that a step may take; the rest is for the way to the client's socket."""

_MAX_TARGETS = 4
"""Different targets that a step looks at, the tightest ones: who has a looser one has time."""
_MAX_BUDGETS = 16
_MAX_NOTES = 64
_ROOM_GAIN = 0.02

Bounds = list[StepBound]


class GapRisk:
    """Keeps a budget for each different target, in nanoseconds, and counts each stream's late gaps.

    A stream that has had as many as its own P99 allows lowers the risk that is taken while it runs,
    by its share in the streams: what is late goes to those that can have it.
    """

    def __init__(self, predictor: StepPredictor, share: float) -> None:
        """`share` of the gaps may be late."""
        self._predictor = predictor
        self._share = share
        self._budgets: dict[int, RiskBudget] = {}
        self._num_late: dict[Request, int] = {}
        self._spent: set[Request] = set()
        self._notes: deque[tuple[bool, Bounds]] = deque(maxlen=_MAX_NOTES)
        self.room = 1.0 / max(predictor.ratio(share), 1.0)
        """Expected time / limit that steps were allowed where streams and prompts competed."""

    # -- a step is made -----------------------------------------------------------------------
    def bounds(
        self, targets: Iterable[int], decodes: StepFeatures, waited_ns: int, *, is_pressed: bool
    ) -> Bounds:
        """What the streams' targets leave to prompts, `waited_ns` after the streams' last token.

        Not `is_pressed` says that no prompt asks.
        """
        predictor, bounds = self._predictor, []
        part = self._part(decodes.num_decode_seqs)
        for target in sorted(targets)[:_MAX_TARGETS]:
            limit_ns = max(HEADROOM * target - waited_ns, 1.0)
            base, risk = predictor.late_share(decodes, limit_ns), 0.0
            if is_pressed:
                budget = self._budget(target)
                risk = budget.choose(predictor, decodes, limit_ns, base, part)
            bounds.append(StepBound(limit_ns, risk, base, target))
        return bounds

    def made(self, bounds: Bounds, step: StepFeatures, *, is_pressed: bool) -> None:
        """The step was made so: each budget earns its part, and what the prompts add is spent."""
        num_decodes = step.num_decode_seqs
        if is_pressed and num_decodes:
            predictor, part, room = self._predictor, self._part(num_decodes), 1.0
            for limit_ns, risk, base, target in bounds:
                share = predictor.late_share(step, limit_ns) if step.num_prefill_tokens else base
                self._budget(target).settle(num_decodes, part, max(share - base, 0.0))
                room = min(room, 1.0 / max(predictor.ratio(risk), 1.0) if risk else 0.0)
            self.room += _ROOM_GAIN * (room - self.room)
        self._notes.append((is_pressed, bounds))

    # -- it has run ---------------------------------------------------------------------------
    @property
    def was_pressed(self) -> bool:
        """Whether prompts waited for the oldest step that was made and has not run."""
        return bool(self._notes) and self._notes[0][0]

    def ended(self, gap_ns: int, end_ns: int, num_gaps: int, targets: Counter[int]) -> list[int]:
        """The oldest step that was made has run, with so many gaps of this length; `targets`
        counts the streams that have each. Returns the targets that it missed."""
        is_pressed, bounds = self._notes.popleft() if self._notes else (False, [])
        base_shares = {bound.target_ns: bound.base_share for bound in bounds}
        num_streams = sum(targets.values())
        missed = []
        for target in targets:
            is_late = gap_ns > HEADROOM * target
            if is_late:
                missed.append(target)
            if target in base_shares or is_late:
                count = num_gaps * targets[target] / num_streams
                self._budget(target).note(
                    end_ns, count, is_late, base_shares.get(target, 0.0), is_pressed=is_pressed
                )
        return missed

    def was_late(self, request: Request, num_expected_gaps: float) -> None:
        """One of the request's gaps was late, of so many that it will have."""
        late = self._num_late[request] = self._num_late.get(request, 0) + 1
        allowed = max(1, int(LATE_SHARE * num_expected_gaps))
        # Once it has had more, its own P99 is lost, and only the window's is left to keep.
        if late == allowed:
            self._spent.add(request)
        elif late > allowed:
            self._spent.discard(request)

    def leave(self, request: Request) -> None:
        self._num_late.pop(request, None)
        self._spent.discard(request)

    # -- internals ----------------------------------------------------------------------------
    def _part(self, num_decodes: int) -> float:
        """Of an allowance: what the streams that have had their late gaps leave of it."""
        return max(0.0, 1.0 - len(self._spent) / num_decodes)

    def _budget(self, target: int) -> RiskBudget:
        budget = self._budgets.get(target)
        if budget is None:
            if len(self._budgets) >= _MAX_BUDGETS:
                del self._budgets[min(self._budgets, key=lambda t: self._budgets[t].last_ns)]
            budget = self._budgets[target] = RiskBudget(self._share)
        return budget
