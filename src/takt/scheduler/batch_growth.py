"""Whether a batch may take in one more request: if its decodes are in time at their peak."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from takt.scheduler.batch_peak import decode_step, fits_at_peak
from takt.scheduler.gap_risk import HEADROOM
from takt.scheduler.prefill_budget import StepBound, StepPredictor, largest_chunk, with_chunk
from takt.scheduler.request import Request
from takt.scheduler.step_time import StepFeatures

LEAST_CHUNK = 4
"""Tokens of a prompt that each step should have room for, beside the decodes at their peak. Where
prompts take turns with decodes a batch may be larger: they wait for its end."""

TURNS_FROM = 1.25
"""What a token of a prompt costs beside decodes, in terms of one in a step of prompts: from there
on prompts and decodes better take turns. In turns decodes go in larger batches, too, so that a
little is enough: with 2, targets that leave a prompt 30 to 60 tokens a step halve the goodput."""
_TURN_SPARE = 0.2
"""Of its target of TTFT, what a prompt that waits for the end of a batch has to be early by: others
join those in front of it, and a batch's end is no more than expected."""
_FULL_CHUNK = 256
_LOOKS_APART = 32

_JOIN_SHARE = 0.015
_MAX_JOIN_SHARE = 0.05
"""Late steps at the peak that a batch is allowed to come to, beside those it has now, and in all.
It is seldom at its peak; a share below that of disturbances would let them decide who joins."""
_HELD_BACK_STEPS = 32


def cost_beside(
    predictor: StepPredictor, decodes: StepFeatures, start: int, num_tokens: int
) -> float:
    """Of a token of a prompt, so many of them beside these decodes, in terms of one in a step of
    prompts alone."""
    if num_tokens == 0:
        return math.inf
    step = with_chunk(decodes, start, num_tokens)
    beside_ns = (predictor.predict_ns(step) - predictor.predict_ns(decodes)) / num_tokens
    alone = with_chunk(decode_step(0, 0), start, _FULL_CHUNK)
    return beside_ns / (predictor.predict_ns(alone) / _FULL_CHUNK)


class BatchGrowth:
    """`server_itl_ns` is the target that the server was given; None: none."""

    def __init__(self, predictor: StepPredictor, server_itl_ns: int | None) -> None:
        self._predictor = predictor
        self._server_itl_ns = server_itl_ns
        self._takes_turns = False
        self._num_looks = 0
        self._num_departures = 0
        self._held_back: dict[Request, tuple[int, bool, int]] = {}
        """Who may not join: the departures until then, whether it was overdue, and the steps for
        which that holds."""

    def may_join(
        self,
        request: Request,
        running: Iterable[Request],
        decodes: StepFeatures,
        target_ns: int,
        *,
        is_overdue: bool,
    ) -> bool:
        """Whether the tightest target holds at the peak, with those that decode now as they are."""
        # The peak falls only when a sequence leaves, and with what the model learns.
        departures, was_overdue, num_steps = self._held_back.get(request, (-1, False, 0))
        if departures == self._num_departures and was_overdue is is_overdue and num_steps > 0:
            self._held_back[request] = (departures, is_overdue, num_steps - 1)
            return False
        limit_ns = HEADROOM * target_ns
        chunk, share = self.least_chunk(decodes), self.late_share(decodes, limit_ns)
        fits = fits_at_peak(self._predictor, running, request, chunk, limit_ns, share)
        if not fits:
            self._held_back[request] = (self._num_departures, is_overdue, _HELD_BACK_STEPS)
        return fits

    def least_chunk(self, decodes: StepFeatures) -> int:
        """Tokens of a prompt that the decodes at their peak have to leave room for."""
        if self._server_itl_ns is None:
            return LEAST_CHUNK
        if self._num_looks % _LOOKS_APART == 0:
            limit_ns = HEADROOM * self._server_itl_ns
            bound = StepBound(limit_ns, self.late_share(decodes, limit_ns))
            one = decode_step(1, _FULL_CHUNK)
            chunk = largest_chunk(self._predictor, one, 0, _FULL_CHUNK, [bound])
            self._takes_turns = cost_beside(self._predictor, one, 0, chunk) > TURNS_FROM
        self._num_looks += 1
        return 0 if self._takes_turns else LEAST_CHUNK

    def turn_step_ns(self, num_tokens: int) -> Callable[[int], float] | None:
        """The step of so many streams with contexts of `num_tokens`, which prompts wait out; None
        where they need not."""
        if self.least_chunk(decode_step(1, num_tokens)) > 0:
            return None
        return lambda num_seqs: self._predictor.predict_ns(
            decode_step(num_seqs, num_seqs * num_tokens)
        )

    def turn_is_better(
        self,
        request: Request,
        decodes: StepFeatures,
        bounds: Sequence[StepBound],
        most: int,
        *,
        after_ns: float,
        passed_ns: int,
        ttft_ns: int,
    ) -> bool:
        """Whether a prompt, `passed_ns` after it came, better waits for these decodes to end, with
        which it would be done in `after_ns`: it is in time then, or sooner than beside them."""
        beside_ns = self._beside_ns(request, decodes, bounds, most)
        is_in_time = passed_ns + after_ns <= (1.0 - _TURN_SPARE) * ttft_ns
        return beside_ns is not None and (is_in_time or after_ns <= beside_ns < math.inf)

    def _beside_ns(
        self, request: Request, decodes: StepFeatures, bounds: Sequence[StepBound], most: int
    ) -> float | None:
        """What the rest of a prompt takes beside these decodes, within their bounds and `most`
        tokens a step; infinity if it has no room. None where it may be mixed with them at a fair
        price."""
        start = request.num_computed_tokens
        num_left = request.num_tokens - start
        chunk = largest_chunk(self._predictor, decodes, start, min(num_left, most), bounds)
        if cost_beside(self._predictor, decodes, start, chunk) <= TURNS_FROM:
            return None
        if chunk == 0:
            return math.inf
        return num_left / chunk * self._predictor.predict_ns(with_chunk(decodes, start, chunk))

    def late_share(self, decodes: StepFeatures, limit_ns: float) -> float:
        """Share of steps that may be late at the peak of a batch that grows.

        What is late even now, by disturbances that dwarf a sequence more, keeps nobody out.
        """
        base = self._predictor.late_share(decodes, limit_ns)
        return min(base + _JOIN_SHARE, _MAX_JOIN_SHARE)

    def departed(self) -> None:
        """A running sequence has left."""
        self._num_departures += 1

    def forget(self, request: Request) -> None:
        """It has joined, or has ended."""
        self._held_back.pop(request, None)
