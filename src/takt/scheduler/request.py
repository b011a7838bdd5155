"""A request as the engine keeps it: its tokens and how far they are computed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from takt.kvcache.prefix import PrefixChain
from takt.scheduler.slo import NO_SLO, SLO
from takt.types.sampling_params import SamplingParams


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class SharedSteps:
    """Steps that sequences take together, each of which computes a token of every one and samples
    the next: they are counted once for all of them."""

    __slots__ = ("last_step_id", "num_taken", "num_yielded")

    def __init__(self) -> None:
        self.num_taken = 0
        self.num_yielded = 0
        """Of these, steps whose tokens are known."""
        self.last_step_id = -1


_NO_STEPS = SharedSteps()


@dataclass(eq=False, slots=True)
class Request:
    """One sequence. A step computes tokens so that `num_computed_tokens` catches up.

    There is no prefill or decode phase: `token_ids` holds prompt and output, and whatever is not
    computed yet is scheduled. `max_tokens` is resolved: never None. `arrival_ns` is on the
    engine's clock.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int]
    arrival_ns: int
    priority: int = 0
    slo: SLO = NO_SLO
    """What it asks for itself; the server's targets hold where it asks nothing."""
    choice: int = 0
    cache_salt: str = ""
    num_generated_before: int = 0
    """Tokens at the prompt's end that another engine generated, which this one goes on from."""
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache when it was first scheduled."""
    num_preemptions: int = 0
    first_scheduled_ns: int | None = None
    num_scored_tokens: int = 0
    """Prompt positions whose logprobs need no computing any more, where they were asked for."""
    # Bookkeeping of the scheduler that holds the request.
    order_key: tuple[int, ...] = ()
    """Its place in the policy's order; unique, smaller is first."""
    max_computed_tokens: int = 0
    """Tokens that are ever computed: all but the last one that is sampled."""
    pending_choices: list[int] = field(default_factory=list)
    """Choices that are forked off when the prompt is computed."""
    num_slots: int = 0
    """Tokens for which the KV pool has given it slots; 0 asks again."""
    prefix: PrefixChain | None = None
    _shared: SharedSteps = field(default=_NO_STEPS, init=False, repr=False)
    """What it takes with others now; the counters below are without these."""
    _num_computed: int = field(default=0, init=False)
    _num_in_flight: int = field(default=0, init=False)
    _last_step_id: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        if not self.token_ids:
            self.token_ids = list(self.prompt_token_ids)

    @property
    def num_computed_tokens(self) -> int:
        return self._num_computed + self._shared.num_taken

    @num_computed_tokens.setter
    def num_computed_tokens(self, count: int) -> None:
        self._num_computed = count - self._shared.num_taken

    @property
    def num_in_flight_tokens(self) -> int:
        """Tokens whose sampling has been scheduled and whose ids are not known yet."""
        shared = self._shared
        return self._num_in_flight + shared.num_taken - shared.num_yielded

    @num_in_flight_tokens.setter
    def num_in_flight_tokens(self, count: int) -> None:
        shared = self._shared
        self._num_in_flight = count - shared.num_taken + shared.num_yielded

    @property
    def last_step_id(self) -> int:
        """The last step that touches its blocks."""
        return max(self._last_step_id, self._shared.last_step_id)

    @last_step_id.setter
    def last_step_id(self, step_id: int) -> None:
        self._last_step_id = step_id

    def share(self, steps: SharedSteps) -> None:
        """Goes on with those who take these steps."""
        num_computed, num_in_flight = self.num_computed_tokens, self.num_in_flight_tokens
        self._last_step_id = self.last_step_id
        self._shared = steps
        self.num_computed_tokens, self.num_in_flight_tokens = num_computed, num_in_flight

    def go_alone(self) -> None:
        self.share(_NO_STEPS)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_given_tokens(self) -> int:
        """Tokens that nobody generated: a precision policy may compute them unlike the others."""
        return len(self.prompt_token_ids) - self.num_generated_before

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def lacks_scores(self) -> bool:
        """Whether prompt positions are still to be scored, for which their logits are computed."""
        return (
            self.sampling.prompt_logprobs is not None
            and self.num_scored_tokens < self.num_prompt_tokens
        )

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]
