"""One replica's load as its server sees it, and when a request would be finished there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.load_snapshot import LoadSnapshot, SnapshotModel
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

_SHARE_GAIN = 0.02
_FIRST_GUESS = StepCoefficients(4e6, 1e5, 1e5, 500.0, 10.0)
"""A small model's steps on a small CPU; the first steps that run correct it."""


class Work(NamedTuple):
    """A request as routing sees it."""

    num_prompt_tokens: int
    num_seqs: int
    max_tokens: int
    """Of output, for each sequence."""

    @property
    def num_final_tokens(self) -> int:
        """KV that it may come to hold."""
        return self.num_prompt_tokens + self.num_seqs * self.max_tokens


class StepTimes(Protocol):
    def predict_ns(self, features: StepFeatures) -> float: ...


class StepRecord(Protocol):
    """What is read of a step's record."""

    schedule_start_ns: int
    update_end_ns: int
    num_decode_seqs: int
    num_prefill_tokens: int
    num_kv_tokens_read: int
    num_qk_pairs: int
    num_waiting: int
    kv_fullest_share: float

    @property
    def load(self) -> LoadSnapshot | None: ...


@dataclass(slots=True)
class _Sent:
    work: Work
    num_uncached_tokens: int
    sent_ns: int
    num_output_tokens: int = 0
    has_begun: bool = False


class ReplicaLoad:
    """Counts what was sent and what has come back; sums are kept, so that asking costs O(1).

    How long steps take is what the engine says of its own model, where it keeps one, and otherwise
    learned here from the records of its steps.
    """

    def __init__(
        self, *, max_num_seqs: int, max_num_batched_tokens: int, reserves_output: bool
    ) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._reserves_output = reserves_output
        guess = StepTimeModel((_FIRST_GUESS, _FIRST_GUESS))
        self._learned = LearnedStepTime(guess)
        self._told: SnapshotModel | None = None
        self._requests: dict[str, _Sent] = {}
        self._output_share = 1.0
        self.last_step_ns: int | None = None
        """When the last step ended."""
        self.last_sent_ns = 0
        self.restart(0)

    def restart(self, num_kv_tokens: int) -> None:
        """A new engine with a pool of so many tokens; whatever was sent before has ended."""
        self._num_kv_tokens = num_kv_tokens
        self._used_share = 0.0
        self._num_waiting = 0
        self._requests.clear()
        self._num_computed_tokens = 0
        self._prompt_tokens = self._prompt_seqs = self._prompt_kv = 0
        self._prompt_output_tokens = 0
        self._seqs = self._kv_tokens = self._left_tokens = 0
        self._final_tokens = self._running_final_tokens = 0

    # -- what happens -------------------------------------------------------------------------

    def sent(self, request_id: str, work: Work, num_cached_tokens: int, now_ns: int) -> None:
        uncached = max(work.num_prompt_tokens - num_cached_tokens, 1)
        self._requests[request_id] = _Sent(work, uncached, now_ns)
        self._prompt_tokens += uncached
        self._prompt_seqs += work.num_seqs
        self._prompt_kv += work.num_seqs * work.num_prompt_tokens
        self._prompt_output_tokens += work.num_seqs * work.max_tokens
        self._final_tokens += work.num_final_tokens
        self.last_sent_ns = now_ns

    def received(self, request_id: str, num_tokens: int) -> None:
        """Output of a request, all choices together."""
        sent = self._requests.get(request_id)
        if sent is None or num_tokens == 0:
            return
        if not sent.has_begun:
            self._begin(sent)
        sent.num_output_tokens += num_tokens
        self._kv_tokens += num_tokens
        self._left_tokens -= num_tokens

    def ended(self, request_id: str, *, is_complete: bool) -> None:
        """Whatever its end; one that is complete tells how much of their limit outputs take."""
        sent = self._requests.pop(request_id, None)
        if sent is None:
            return
        work, most = sent.work, sent.work.num_seqs * sent.work.max_tokens
        if not sent.has_begun:
            self._begin(sent)
        self._seqs -= work.num_seqs
        self._kv_tokens -= work.num_seqs * work.num_prompt_tokens + sent.num_output_tokens
        self._left_tokens -= most - sent.num_output_tokens
        self._final_tokens -= work.num_final_tokens
        self._running_final_tokens -= work.num_final_tokens
        if is_complete and most > 0:
            share = sent.num_output_tokens / most
            self._output_share += _SHARE_GAIN * (share - self._output_share)

    def step(self, step: StepRecord) -> None:
        """The engine has made a step. A pipeline's period is what counts, not a step's latency."""
        begin_ns = step.schedule_start_ns
        if self.last_step_ns is not None:
            begin_ns = max(begin_ns, self.last_step_ns)
        self.last_step_ns = step.update_end_ns
        self._num_computed_tokens += step.num_prefill_tokens
        self._num_waiting = step.num_waiting
        self._used_share = step.kv_fullest_share
        if step.load is not None:
            self.take(step.load)
        if self._told is None:
            features = StepFeatures(
                step.num_decode_seqs,
                step.num_prefill_tokens,
                step.num_kv_tokens_read,
                step.num_qk_pairs,
            )
            self._learned.observe(features, step.update_end_ns - begin_ns)

    def take(self, load: LoadSnapshot | None) -> None:
        """The engine's own step-time model, where it comes with one."""
        if load is not None:
            self._told = SnapshotModel(load)

    def _begin(self, sent: _Sent) -> None:
        work = sent.work
        sent.has_begun = True
        self._prompt_tokens -= sent.num_uncached_tokens
        self._num_computed_tokens = max(0, self._num_computed_tokens - sent.num_uncached_tokens)
        self._prompt_seqs -= work.num_seqs
        self._prompt_kv -= work.num_seqs * work.num_prompt_tokens
        self._prompt_output_tokens -= work.num_seqs * work.max_tokens
        self._seqs += work.num_seqs
        self._kv_tokens += work.num_seqs * work.num_prompt_tokens
        self._left_tokens += work.num_seqs * work.max_tokens
        self._running_final_tokens += work.num_final_tokens

    # -- what follows -------------------------------------------------------------------------

    @property
    def model(self) -> StepTimes:
        return self._told or self._learned

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_waiting(self) -> int:
        """Requests that waited after the last step; an idle engine makes none that would say 0."""
        return self._num_waiting if self._requests else 0

    @property
    def memory(self) -> float:
        """Share of the fullest pool that is used or, with reserved output, promised to those that
        run."""
        if not self._requests:
            return 0.0
        if not self._reserves_output or not self._num_kv_tokens:
            return self._used_share
        return max(self._used_share, min(1.0, self._running_final_tokens / self._num_kv_tokens))

    def share_of(self, work: Work) -> float:
        """Share of the pool that a request comes to need: what is promised to it, or, where output
        is not reserved, as much of its limit as outputs have been taking."""
        output_share = 1.0 if self._reserves_output else self._output_share
        tokens = work.num_prompt_tokens + output_share * work.num_seqs * work.max_tokens
        return tokens / max(self._num_kv_tokens, 1)

    def prompt_ids(self) -> list[str]:
        """Requests of which no token has come yet, in the order in which they were sent."""
        return [name for name, sent in self._requests.items() if not sent.has_begun]

    def longest_wait_ns(self, now_ns: int) -> int:
        """Since the first of them was sent; 0 if there is none."""
        first = next((s.sent_ns for s in self._requests.values() if not s.has_begun), now_ns)
        return max(0, now_ns - first)

    def finish_ns(
        self, work: Work, num_cached_tokens: int, model: StepTimes | None = None
    ) -> float:
        """Time in which a request sent now would be finished, the output it may have included.

        It waits for the seats and KV blocks that it lacks, which come as sequences in front of it
        end, at the rate of their number over their length; then for the prompts in front of it and
        its own, without what is cached; then all that is there decodes.
        """
        model = model or self.model
        own = max(work.num_prompt_tokens - num_cached_tokens, 1)
        return (
            self._wait_ns(work, own, model)
            + self._prefill_ns(work, own, model)
            + self._decode_ns(work, model)
        )

    def _wait_ns(self, work: Work, num_own_tokens: int, model: StepTimes) -> float:
        num_ahead = self._seqs + self._prompt_seqs
        if not num_ahead:
            return 0.0
        lack = float(num_ahead + work.num_seqs - self._max_num_seqs)
        if self._num_kv_tokens:
            need = num_own_tokens + work.num_seqs * work.max_tokens * self._output_share
            promised: float = self._kv_tokens + self._prompt_kv
            promised += self._output_share * (self._left_tokens + self._prompt_output_tokens)
            lack_kv = promised + need - self._num_kv_tokens
            lack = max(lack, lack_kv * num_ahead / max(promised, 1.0))
        if lack <= 0:
            return 0.0
        # Of those that run half is left on average, so twice that is how long they take.
        length = self._output_share * (2 * self._left_tokens + self._prompt_output_tokens)
        num_steps = lack * max(length / num_ahead, 1.0) / min(num_ahead, self._max_num_seqs)
        kv_tokens = self._kv_tokens + self._prompt_kv
        seqs = min(num_ahead, self._max_num_seqs)
        return num_steps * model.predict_ns(StepFeatures(seqs, 0, kv_tokens, kv_tokens))

    def _prefill_ns(self, work: Work, num_own_tokens: int, model: StepTimes) -> float:
        ahead = max(self._prompt_tokens - self._num_computed_tokens, 0)
        total = ahead + num_own_tokens
        num_steps = -(-total // max(self._max_num_batched_tokens - self._seqs, 1))
        tokens = -(-total // num_steps)
        # On average a prompt's token attends to half of it.
        kv_tokens = self._kv_tokens + work.num_prompt_tokens
        pairs = self._kv_tokens + tokens * work.num_prompt_tokens // 2
        return num_steps * model.predict_ns(StepFeatures(self._seqs, tokens, kv_tokens, pairs))

    def _decode_ns(self, work: Work, model: StepTimes) -> float:
        num_tokens = self._output_share * work.max_tokens
        seqs = min(self._seqs + self._prompt_seqs + work.num_seqs, self._max_num_seqs)
        own = work.num_seqs * (work.num_prompt_tokens + round(num_tokens / 2))
        kv_tokens = self._kv_tokens + self._prompt_kv + own
        return num_tokens * model.predict_ns(StepFeatures(seqs, 0, kv_tokens, kv_tokens))
