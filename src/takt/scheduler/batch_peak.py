"""The longest decode step that running requests will come to if they all use their limits."""

from __future__ import annotations

from collections.abc import Iterable

from takt.scheduler.prefill_budget import StepPredictor, with_chunk
from takt.scheduler.request import Request
from takt.scheduler.step_time import StepFeatures

_GROUPS = 16
"""Points in time at which a batch's future is looked at."""


def decode_step(num_seqs: int, num_kv_tokens: int) -> StepFeatures:
    """A step in which each of `num_seqs` sequences decodes, with contexts of this sum."""
    return StepFeatures(num_seqs, 0, num_kv_tokens, num_kv_tokens)


def fits_at_peak(
    predictor: StepPredictor,
    running: Iterable[Request],
    joining: Request,
    num_prefill_tokens: int,
    limit_ns: float,
    late_share: float,
) -> bool:
    """Whether decodes, and a piece of a prompt beside them, stay within `limit_ns` with `joining`,
    all but a share `late_share` of such steps.

    Sequences end, so that the largest batch and the longest contexts don't come together: the
    bound of both is asked first, and each sequence's last step only if that is too long.
    """
    rest: list[tuple[int, int]] = []
    for request in (*running, joining):
        seqs = 1 + len(request.pending_choices)
        last = request.num_prompt_tokens + max(request.max_tokens, 1)
        rest += [(last - request.num_tokens, last)] * seqs
    step = decode_step(len(rest), sum([last for _, last in rest]))
    if _is_within(predictor, with_chunk(step, 0, num_prefill_tokens), limit_ns, late_share):
        return True
    rest.sort(reverse=True)
    # Those left when a sequence makes its last step are all that end with it or later. A group is
    # taken with its longest rest and its full number: a bound that is close, for few predictions.
    size = -(-len(rest) // _GROUPS)
    contexts = 0
    for first in range(0, len(rest), size):
        group = rest[first : first + size]
        contexts += sum([last - left for left, last in group])
        num_seqs = first + len(group)
        step = decode_step(num_seqs, contexts + num_seqs * group[0][0])
        if not _is_within(predictor, with_chunk(step, 0, num_prefill_tokens), limit_ns, late_share):
            return False
    return True


def _is_within(
    predictor: StepPredictor, step: StepFeatures, limit_ns: float, late_share: float
) -> bool:
    return predictor.predict_ns(step) * predictor.ratio(late_share) <= limit_ns
