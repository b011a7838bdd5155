"""Sequences that decode a token in every step, and in which of their steps one needs more."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Sequence
from operator import attrgetter

from takt.scheduler.request import Request, SharedSteps

_order_key = attrgetter("order_key")
_NOBODY: dict[Request, None] = {}


class DecodeBatch:
    """The sequences that decode in a step, in the policy's order; it never changes.

    Steps in a row have the same batch, and are told apart by their number: sequence i computes
    the token at position `bases[i] + batch_step`.
    """

    __slots__ = ("_token_ids", "bases", "requests")

    def __init__(self, requests: list[Request], bases: list[int]) -> None:
        self.requests = requests
        self.bases = bases
        self._token_ids = [request.token_ids for request in requests]

    def __len__(self) -> int:
        return len(self.requests)

    def starts(self, batch_step: int) -> list[int]:
        """Position of the token that each sequence computes in that step."""
        return [base + batch_step for base in self.bases]

    def append(self, token_ids: Sequence[int]) -> None:
        """Gives each sequence its next token, in order; more are not looked at."""
        deque(map(list.append, self._token_ids, token_ids), maxlen=0)


class Decodes:
    """Who decodes from now on. A step touches nothing of a sequence but its counters, unless

    - it begins a block (`at_border`), for which the KV pool is asked, or has completed one;
    - it samples its last token (`ending`), or a token that stops one (`stop_ids`).

    The first two are known ahead: a sequence's positions and the numbers of its steps differ by a
    constant for as long as it decodes.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._steps = SharedSteps()
        self.requests: list[Request] = []
        """All that decode, in the policy's order. Read only."""
        self._bases: list[int] = []
        """Of each, the next position less `num_steps`."""
        self._base_of: dict[Request, int] = {}
        self._sum_of_bases = 0
        self._borders: list[dict[Request, None]] = [{} for _ in range(block_size)]
        """By base modulo the block size."""
        self._endings: dict[int, dict[Request, None]] = {}
        """By the number of the step that samples a sequence's last token."""
        self._stop_sets: Counter[frozenset[int]] = Counter()
        self.stop_ids: frozenset[int] = frozenset()
        """Tokens that stop at least one of the sequences."""
        self.current: DecodeBatch | None = DecodeBatch([], [])
        """What `batch` would return; None if somebody has joined or left since. Read only."""

    @property
    def num_steps(self) -> int:
        """Steps that were taken; the number of the next one."""
        return self._steps.num_taken

    def __contains__(self, request: Request) -> bool:
        return request in self._base_of

    def batch(self) -> DecodeBatch:
        """Those that decode now; the same object as long as nobody joins or leaves."""
        if self.current is None:
            self.current = DecodeBatch(self.requests.copy(), self._bases.copy())
        return self.current

    @property
    def num_steps_left(self) -> int:
        """The most that one of them still takes."""
        return max(self._endings, default=self.num_steps - 1) + 1 - self.num_steps

    @property
    def num_kv_tokens(self) -> int:
        """Sum of the contexts that the next step reads, its own tokens included."""
        return self._sum_of_bases + (self.num_steps + 1) * len(self.requests)

    def join(self, request: Request) -> None:
        """Takes in a sequence that lacks its newest token alone, and has one to sample."""
        base = request.num_computed_tokens - self.num_steps
        request.share(self._steps)
        place = bisect_left(self.requests, request.order_key, key=_order_key)
        self.requests.insert(place, request)
        self._bases.insert(place, base)
        self._base_of[request] = base
        self._sum_of_bases += base
        self._borders[base % self._block_size][request] = None
        last = request.max_computed_tokens - 1 - base
        self._endings.setdefault(last, {})[request] = None
        stops = request.stop_token_ids
        self._stop_sets[stops] += 1
        if self._stop_sets[stops] == 1:
            self.stop_ids = self.stop_ids | stops
        self.current = None

    def leave(self, request: Request) -> None:
        """Lets go of a sequence; one that is not here is no error."""
        base = self._base_of.pop(request, None)
        if base is None:
            return
        request.go_alone()
        place = bisect_left(self.requests, request.order_key, key=_order_key)
        del self.requests[place], self._bases[place]
        self._sum_of_bases -= base
        del self._borders[base % self._block_size][request]
        last = request.max_computed_tokens - 1 - base
        endings = self._endings.get(last)
        if endings is not None:
            endings.pop(request, None)
            if not endings:
                del self._endings[last]
        stops = request.stop_token_ids
        self._stop_sets[stops] -= 1
        if not self._stop_sets[stops]:
            del self._stop_sets[stops]
            self.stop_ids = frozenset().union(*self._stop_sets)
        self.current = None

    def at_border(self, step: int) -> Collection[Request]:
        """Whose position in that step is the first of a block: what comes before fills blocks."""
        return self._borders[-step % self._block_size]

    def ending(self, step: int) -> Collection[Request]:
        """Whose last token that step samples."""
        return self._endings.get(step, _NOBODY)

    def leave_ended(self) -> None:
        """Lets go of those whose last token is on its way."""
        ended = self._endings.get(self.num_steps - 1)
        if ended:
            for request in list(ended):
                self.leave(request)

    def advance(self, step_id: int) -> None:
        """Has each sequence compute a token and sample the next one."""
        self._steps.num_taken += 1
        self._steps.last_step_id = step_id

    def take(self, batch: DecodeBatch, token_ids: Sequence[int]) -> None:
        """Gives the sequences of `current` the tokens that they have sampled in a step."""
        batch.append(token_ids)
        self._steps.num_yielded += 1
