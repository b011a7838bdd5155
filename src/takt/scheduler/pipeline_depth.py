"""How many steps a pipeline has in flight, found while it runs.

More steps in flight keep more stages busy. Fewer make each step's batch larger, so that weights are
read for more tokens at once, and leave less of the KV pool reserved for what is not yet computed.
Which of the two wins depends on the load, on the CPUs that the stages share and on the pool, so it
is measured.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from takt.errors import InvariantError


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthRules:
    """Parameters of the search; shares of the pool are between 0 and 1."""

    steps_per_sample: int = 10
    low_share: float = 0.20
    """Of the pool, reserved and not written: below it, both directions are tried."""
    high_share: float = 0.35
    """Above it, only fewer steps are tried; between the two nothing is."""
    share_hysteresis: float = 0.02
    """A band is left this far beyond its border."""
    samples_per_depth: int = 5
    """The median of their throughputs is that of a depth; the first after a move is left out."""
    least_gain: float = 0.03
    """By which throughput must rise for a move to be kept. In the high band it may fall by it: what
    the pool gets back is worth that much."""
    hopeless: float = 0.85
    """Share of the kept depth's throughput below which a try ends after `samples_of_hopeless`."""
    samples_of_hopeless: int = 2
    load_change: float = 0.25
    """Relative change of throughput or of running sequences that begins a new search."""
    samples_of_change: int = 3
    """In a row, for such a change or another band to count."""
    shortest_rest: int = 8
    """Samples without a search after one; twice as many each time that it found nothing new."""
    longest_rest: int = 128
    second_look: int = 16
    """Samples of rest after which a search that has moved is made once more: a disturbed sample
    may have led it astray."""
    prompt_token_weight: float = 0.5
    """A prompt's token beside a decoded one, as work: products of many rows cost less a row."""


DEFAULT_RULES = DepthRules()


class Band(enum.Enum):
    """How much of the pool is reserved and not written."""

    LOW = "low"
    MIDDLE = "middle"
    HIGH = "high"


class _Phase(enum.Enum):
    MEASURING = "measuring"
    """The depth that is kept so far."""
    TRYING = "trying"
    """One beside it."""
    RESTING = "resting"


@dataclass(frozen=True, slots=True)
class _Sample:
    work_per_ns: float
    num_running: float


class PipelineDepth:
    """Decides once every `steps_per_sample` steps, and moves by one step at most.

    A search tries neighbours of the depth that is kept, each depth once, and keeps one that is
    better by a margin; then it rests until the load changes. Under a load that stays the same it
    therefore comes to a stand. Times are nanoseconds of one monotonic clock, given by the caller.
    """

    def __init__(
        self,
        *,
        first: int,
        most: int,
        unwritten_share: Callable[[], float],
        rules: DepthRules = DEFAULT_RULES,
    ) -> None:
        """`unwritten_share` tells what part of the pool is reserved and not written."""
        if not 1 <= first <= most:
            raise InvariantError(f"a pipeline of depth {first}, of at most {most}")
        self.depth = first
        self.unwritten_share = 0.0
        """At the last sample."""
        self._most = most
        self._rules = rules
        self._read_share = unwritten_share
        self._band: Band | None = None
        self._phase = _Phase.MEASURING
        # The sample that is being taken.
        self._start_ns: int | None = None
        self._num_steps = 0
        self._work = 0.0
        self._num_running = 0
        # The search.
        self._samples: list[_Sample] = []
        self._is_settling = False
        self._tried = {first}
        self._kept = first
        self._kept_rate = 0.0
        self._search_began_at = first
        # The rest.
        self._rest_band: Band | None = None
        self._rest_sample = _Sample(0.0, 0.0)
        self._rest_length = rules.shortest_rest
        self._num_rested = 0
        self._num_changed = 0
        self._looks_again = True

    def observe(
        self,
        *,
        num_decode_seqs: int,
        num_prefill_tokens: int,
        num_running: int,
        start_ns: int,
        end_ns: int,
        after_idle: bool = False,
    ) -> None:
        """Takes note of a completed step. `after_idle`: the engine had no work before it."""
        if after_idle or self._start_ns is None:
            self._begin_sample(start_ns)
        self._work += num_decode_seqs + self._rules.prompt_token_weight * num_prefill_tokens
        self._num_running += num_running
        self._num_steps += 1
        if self._num_steps < self._rules.steps_per_sample:
            return
        assert self._start_ns is not None
        duration_ns = max(end_ns - self._start_ns, 1)
        sample = _Sample(self._work / duration_ns, self._num_running / self._num_steps)
        self._begin_sample(end_ns)
        self._decide(sample)

    # -- internals ----------------------------------------------------------------------------
    def _begin_sample(self, now_ns: int) -> None:
        self._start_ns = now_ns
        self._num_steps = self._num_running = 0
        self._work = 0.0

    def _decide(self, sample: _Sample) -> None:
        self.unwritten_share = self._read_share()
        self._band = self._band_of(self.unwritten_share)
        if self._is_settling:
            self._is_settling = False  # steps of the old depth were still on their way
            return
        if self._phase is _Phase.RESTING:
            self._watch(sample)
            return
        self._samples.append(sample)
        if len(self._samples) < self._rules.samples_per_depth and not self._is_hopeless():
            return
        rate = statistics.median(one.work_per_ns for one in self._samples)
        num_running = statistics.median(one.num_running for one in self._samples)
        self._samples.clear()
        if self._phase is _Phase.TRYING and not self._is_worth(rate):
            self._phase = _Phase.MEASURING
            self._move(self._kept)
            return
        self._kept, self._kept_rate = self.depth, rate
        neighbour = self._next_to_try()
        if neighbour is None:
            self._rest(_Sample(rate, num_running))
            return
        self._phase = _Phase.TRYING
        self._tried.add(neighbour)
        self._move(neighbour)

    def _move(self, depth: int) -> None:
        self.depth = depth
        self._is_settling = True

    def _is_worth(self, rate: float) -> bool:
        """Whether the neighbour that was tried is kept."""
        gain = self._rules.least_gain
        if self._band is Band.HIGH and self.depth < self._kept:
            return rate >= self._kept_rate * (1 - gain)
        return rate >= self._kept_rate * (1 + gain)

    def _is_hopeless(self) -> bool:
        """Whether a try is clearly worse already: it costs as long as it lasts."""
        return (
            self._phase is _Phase.TRYING
            and len(self._samples) >= self._rules.samples_of_hopeless
            and max(one.work_per_ns for one in self._samples)
            < self._rules.hopeless * self._kept_rate
        )

    def _next_to_try(self) -> int | None:
        deeper, shallower = self._kept + 1, self._kept - 1
        ways = {Band.LOW: (deeper, shallower), Band.HIGH: (shallower,)}.get(
            self._band or Band.LOW, ()
        )
        for depth in ways:
            if 1 <= depth <= self._most and depth not in self._tried:
                return depth
        return None

    def _rest(self, sample: _Sample) -> None:
        rules = self._rules
        is_news = self._kept != self._search_began_at
        self._rest_length = (
            rules.shortest_rest if is_news else min(2 * self._rest_length, rules.longest_rest)
        )
        self._phase = _Phase.RESTING
        self._rest_band, self._rest_sample = self._band, sample
        self._looks_again = self._looks_again and is_news
        self._num_rested = self._num_changed = 0

    def _watch(self, sample: _Sample) -> None:
        """Begins a new search once the load is another one, or to confirm the last one."""
        was, rules = self._rest_sample, self._rules
        self._num_rested += 1
        has_changed = (
            self._band is not self._rest_band
            or _differs(sample.work_per_ns, was.work_per_ns, rules.load_change)
            or _differs(sample.num_running, was.num_running, rules.load_change)
        )
        self._num_changed = self._num_changed + 1 if has_changed else 0
        is_other = self._num_changed >= rules.samples_of_change
        if is_other and self._num_rested >= self._rest_length:
            self._looks_again = True
        elif self._looks_again and self._num_rested >= rules.second_look:
            self._looks_again = False
        else:
            return
        self._phase = _Phase.MEASURING
        self._tried = {self.depth}
        self._search_began_at = self.depth

    def _band_of(self, share: float) -> Band:
        rules, band = self._rules, self._band
        margin = 0.0 if band is None else rules.share_hysteresis
        low = rules.low_share + (margin if band is Band.LOW else -margin)
        high = rules.high_share + (-margin if band is Band.HIGH else margin)
        if share < low:
            return Band.LOW
        return Band.HIGH if share > high else Band.MIDDLE


def _differs(value: float, reference: float, share: float) -> bool:
    return abs(value - reference) > share * reference
