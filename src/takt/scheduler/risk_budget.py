"""How much lateness a P99 still allows, and what it is best spent on.

A target of P99 lets one gap in a hundred of a window be late. A window that begins somewhere in the
last `WINDOW_NS` ends within the next: if the late gaps of the last, those of the next that come
whatever is decided, and those that prompts are going to cause are together within the hundredth,
no window exceeds it. What is left of it is what prompts may cost. In the long run that is half of
the hundredth, the other half being last window's: the reserve needs no constant of its own.
"""

from __future__ import annotations

from takt.scheduler.prefill_budget import StepPredictor
from takt.scheduler.step_time import StepFeatures

LATE_SHARE = 0.01
"""Of gaps: what a P99 leaves."""

PROMISED_SHARE = 0.005
"""Where requests were let in on a promise, each one's own gaps count, and these are few."""

WINDOW_NS = 30_000_000_000
_NUM_BUCKETS = 30
_BUCKET_NS = WINDOW_NS // _NUM_BUCKETS

LEAST_SHARE = 0.001
"""What prompts may always cost: lateness that others cause, or a window that is lost, is not to
starve them."""

RISKS = (0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.016, 0.02, 0.025, 0.032, 0.04)
"""Shares of late steps that come in question, from P99.8 to P96: within, a step's time is bounded
by what is usual, and a late one is so by the machine's doing."""

_PRIOR_GAPS = 128
_LEAST_PRESSED = 0.25
"""Prompts may come at any time: the share of gaps beside them is taken to be at least this."""


class RiskBudget:
    """Gaps of one target: those of the last window, and what the next steps may risk."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._now = 0
        # Per second: gaps, late ones, those beside prompts that waited, and those expected to be
        # late even without a prompt.
        self._buckets = [[0.0] * 4 for _ in range(_NUM_BUCKETS)]
        self._sums = [0.0] * 4
        self._credit = 0.0
        self.last_ns = 0

    def note(
        self, end_ns: int, num_gaps: float, is_late: bool, base_share: float, *, is_pressed: bool
    ) -> None:
        """Takes the gaps that a step ended; `base_share` of them was to be late without prompts."""
        self._turn(end_ns)
        bucket, sums = self._buckets[self._now % _NUM_BUCKETS], self._sums
        shares = (1.0, float(is_late), float(is_pressed), base_share)
        for i, share in enumerate(shares):
            count = num_gaps * share
            bucket[i] += count
            sums[i] += count

    def allowance(self, num_decodes: int) -> float:
        """Share of the gaps beside prompts that may be late on their account.

        One more step than expected, of `num_decodes` gaps, is to be late as well: where few gaps
        make a window, that is a part to reckon with.
        """
        gaps, late, pressed, base = self._sums
        seen = gaps + _PRIOR_GAPS
        left = self._share - (late + base + num_decodes) / seen
        pressed_share = max((pressed + _PRIOR_GAPS) / seen, _LEAST_PRESSED)
        return max(left, LEAST_SHARE) / pressed_share

    def choose(
        self,
        predictor: StepPredictor,
        decodes: StepFeatures,
        limit_ns: float,
        base_share: float,
        part: float,
    ) -> float:
        """The share of late ones among steps like the next by which its prompts are bounded.

        0 leaves prompts out. `part` of the allowance is to be used.

        What is gained by a risk is room in the step, limit / ratio; what it costs is only what
        exceeds the risk of the decodes by themselves. With rare but long disturbances, room grows
        by leaps: then a few steps take the risk that gains most for its cost, and the others none.
        """
        allowance = part * self.allowance(decodes.num_decode_seqs)
        credit = self._earned(allowance)
        least_room = predictor.predict_ns(decodes) / limit_ns
        free = widest = best = best_cost = best_slope = 0.0
        for risk in RISKS:
            gain = 1.0 / max(predictor.ratio(risk), 1.0) - least_room
            if gain <= 0.0:
                continue
            cost = risk - base_share
            if cost <= 0.0:
                free = risk
                continue
            if cost <= allowance:
                widest = risk
            if gain > best_slope * cost:
                best, best_cost, best_slope = risk, cost, gain / cost
        if widest and best_cost <= allowance:
            return widest
        return best if best and credit >= best_cost else free

    def settle(self, num_decodes: int, part: float, share: float) -> None:
        """A step was made for which prompts waited: it earns `part` of the allowance, and costs the
        probability `share` of being late on account of its prompts.

        What is owed is bounded too: a window forgets, and so does the credit.
        """
        credit = self._earned(part * self.allowance(num_decodes))
        self._credit = max(credit - share, -RISKS[-1])

    def _earned(self, allowance: float) -> float:
        return min(self._credit + allowance, RISKS[-1])

    def _turn(self, end_ns: int) -> None:
        bucket = end_ns // _BUCKET_NS
        for number in range(max(self._now + 1, bucket - _NUM_BUCKETS + 1), bucket + 1):
            old = self._buckets[number % _NUM_BUCKETS]
            for i in range(len(old)):
                self._sums[i] -= old[i]
                old[i] = 0.0
        self._now = max(self._now, bucket)
        self.last_ns = end_ns
