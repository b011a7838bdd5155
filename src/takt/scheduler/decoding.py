"""The decodes of a step: one token for every sequence that lacks its newest alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from takt.kvcache.manager import KVCacheManager
from takt.scheduler.decode_batch import DecodeBatch, Decodes
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.output import SchedulerOutput
from takt.scheduler.request import Request, RequestStatus
from takt.scheduler.step_builder import StepBuilder

SecureBlock = Callable[[Request, StepBuilder], bool]
"""Takes the block that a decode of the step needs; False if the sequence must go without."""


class DecodeScheduler:
    """Puts the decodes into a step and takes their tokens.

    Nearly all steps decode what the one before did. They go by what `Decodes` knows ahead; steps of
    a pipeline, which decode a part, and those in which blocks run out look at each sequence.
    """

    def __init__(
        self, kv: KVCacheManager, limits: SchedulerLimits, secure_block: SecureBlock | None
    ) -> None:
        """`secure_block` is None if blocks are reserved, so that an append never fails."""
        self._kv = kv
        self._is_pipeline = limits.num_micro_batches > 1
        self._secure_block = secure_block
        self.decodes = Decodes(kv.block_size)
        self._joining: list[Request] = []

    @property
    def num_steps_left(self) -> int:
        """Until the last of those that decode now has sampled all its tokens."""
        return self.decodes.num_steps_left

    def join(self, request: Request) -> None:
        """Lets a sequence decode from the next step on, if it has a token left to sample then.

        All its tokens but the newest, which may be on the way, are scheduled to be computed.
        """
        if request.num_computed_tokens < request.max_computed_tokens:
            self._joining.append(request)

    def leave(self, request: Request) -> None:
        """Lets go of a sequence that runs no more; one that does not decode is no error."""
        self.decodes.leave(request)

    def schedule(self, step: StepBuilder, most: int) -> None:
        """Adds the decodes; there is room for all. In a pipeline they are at most `most`."""
        needing = self._join() if self._joining else []
        if self._is_pipeline:
            self._schedule_part(step, most)
            return
        decodes = self.decodes
        decodes.leave_ended()
        border = decodes.at_border(decodes.num_steps)
        if border:
            needing = [*needing, *border]
        if needing:
            self._append(needing, step)
        batch, number = decodes.batch(), decodes.num_steps
        if batch.requests:
            step.add_decodes(batch, number, decodes.num_kv_tokens, begins_block=bool(needing))
            decodes.advance(step.step_id)

    def take(self, output: SchedulerOutput, token_ids: Sequence[int]) -> list[tuple[Request, int]]:
        """Gives the sequences of a step their tokens, in the order of its rows.

        Returns those that may end by it, in order, each with its token.
        """
        taken = self._take_decodes(output, token_ids)
        if output.prompts:
            taken += self._take_first_tokens(output, token_ids)
        return taken

    # -- internals ----------------------------------------------------------------------------
    def _take_decodes(
        self, output: SchedulerOutput, token_ids: Sequence[int]
    ) -> list[tuple[Request, int]]:
        decodes, batch = self.decodes, output.batch
        if batch is not decodes.current:
            return self._take_each(batch, token_ids)
        kv, number = self._kv, output.batch_step
        for request in decodes.at_border(number + 1):
            kv.commit(request, request.token_ids, len(request.token_ids))
        decodes.take(batch, token_ids)
        ending = decodes.ending(number)
        if not ending and decodes.stop_ids.isdisjoint(token_ids):
            return []
        return [
            (request, token_id)
            for request, token_id in zip(batch.requests, token_ids, strict=False)
            if token_id in request.stop_token_ids or request in ending
        ]

    def _take_first_tokens(
        self, output: SchedulerOutput, token_ids: Sequence[int]
    ) -> list[tuple[Request, int]]:
        """Behind the tokens of the decodes: those of prompts that end, and of their forks."""
        taken, row, over = [], output.num_decodes, RequestStatus.FINISHED
        for item in output.prompts:
            for request in (item.request, *item.forks) if item.samples else ():
                token_id = token_ids[row]
                row += 1
                if request.status is not over and self._take_one(request, token_id):
                    taken.append((request, token_id))
        return taken

    def _take_one(self, request: Request, token_id: int) -> bool:
        """Gives a running or preempted sequence a token; whether it may end by that."""
        token_ids = request.token_ids
        num_computed = len(token_ids)  # all that it was sampled from
        if num_computed % self._kv.block_size == 0:
            self._kv.commit(request, token_ids, num_computed)
        token_ids.append(token_id)
        request.num_in_flight_tokens -= 1
        return token_id in request.stop_token_ids or num_computed >= request.max_computed_tokens

    def _take_each(self, batch: DecodeBatch, token_ids: Sequence[int]) -> list[tuple[Request, int]]:
        """Somebody has joined or left since: some may have ended, or wait again."""
        over = RequestStatus.FINISHED
        return [
            (request, token_id)
            for request, token_id in zip(batch.requests, token_ids, strict=False)
            if request.status is not over and self._take_one(request, token_id)
        ]

    def _join(self) -> list[Request]:
        """Takes in who waits to join; returns those that have no slot for their token."""
        needing = []
        for request in self._joining:
            if request.status is RequestStatus.RUNNING:
                self.decodes.join(request)
                if request.num_computed_tokens >= request.num_slots:
                    needing.append(request)
        self._joining = []
        return needing

    def _append(self, needing: list[Request], step: StepBuilder) -> None:
        if self._secure_block is not None:
            self._append_in_order(needing, self._secure_block, step)
            return
        append = self._kv.append
        for request in needing:
            num_tokens = request.num_computed_tokens + 1
            if num_tokens > request.num_slots:
                request.num_slots = append(request, num_tokens)

    def _append_in_order(
        self, needing: list[Request], secure_block: SecureBlock, step: StepBuilder
    ) -> None:
        """Whoever comes first gets a block, if need be from one that is not served yet."""
        wanted = set(needing)
        for request in self.decodes.requests.copy():
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for another
            if request in wanted and not self._take_block(request, secure_block, step):
                if request.status is RequestStatus.RUNNING:
                    self.decodes.leave(request)
                    self._joining.append(request)
                continue
            request.last_step_id = step.step_id

    def _take_block(
        self, request: Request, secure_block: SecureBlock | None, step: StepBuilder
    ) -> bool:
        num_tokens = request.num_computed_tokens + 1
        if num_tokens > request.num_slots:
            if secure_block is not None and not secure_block(request, step):
                return False
            request.num_slots = self._kv.append(request, num_tokens)
        return True

    def _schedule_part(self, step: StepBuilder, most: int) -> None:
        """A micro-batch: the first that have no token on the way."""
        requests: list[Request] = []
        starts: list[int] = []
        # Preempting takes requests out on the way.
        for request in self.decodes.requests.copy():
            start = request.num_computed_tokens
            if (
                len(requests) >= most
                or request.num_in_flight_tokens
                or start == request.max_computed_tokens
                or request.status is not RequestStatus.RUNNING
                or not self._take_block(request, self._secure_block, step)
            ):
                continue
            requests.append(request)
            starts.append(start)
            request.num_computed_tokens = start + 1
            request.num_in_flight_tokens += 1
            request.last_step_id = step.step_id
        if requests:
            num_kv_tokens = sum(starts) + len(starts)
            batch = DecodeBatch(requests, starts)
            step.add_decodes(batch, 0, num_kv_tokens, begins_block=True)
