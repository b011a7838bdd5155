"""Who is let in to an engine process: room in the queue, and targets that can be met."""

from __future__ import annotations

from collections.abc import Sequence

from takt.clock import Clock, MonotonicClock
from takt.config import SchedulerOptions
from takt.engine.messages import AddRequest
from takt.errors import OverloadedError
from takt.scheduler.admission import COSTLY, Admission, Missed, Refusal
from takt.scheduler.ask import Ask
from takt.scheduler.load_snapshot import LoadSnapshot
from takt.scheduler.slo import NS_PER_MS, SLO

QUEUE_FULL = "queue_full"


class Gate:
    """Decides in the server's process, from what the engine's last step left: in microseconds while
    few wait, and at no cost to the engine."""

    def __init__(self, options: SchedulerOptions, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._max_outstanding = options.max_num_seqs + options.max_num_waiting
        self._admission: Admission | None = None
        self._default_max_tokens = options.default_max_tokens
        if options.policy == "pace":
            slo = SLO.from_ms(options.slo_itl_p99_ms, options.slo_ttft_p99_ms)
            self._admission = Admission(slo, refuses=options.admission == "refuse")

    def check(self, requests: Sequence[AddRequest], num_outstanding: int) -> None:
        """Whether requests, of one client's with as many prompts, are let in together.

        Raises `OverloadedError` if they are not now, `InvalidRequestError` if never.
        """
        num_choices = sum(request.sampling.n for request in requests)
        if num_outstanding and num_outstanding + num_choices > self._max_outstanding:
            raise OverloadedError(
                f"{num_outstanding} sequences run or wait and {num_choices} more would exceed "
                f"{self._max_outstanding} (--max-num-seqs and --max-num-waiting); try again later",
                code=QUEUE_FULL,
                details={"reason": QUEUE_FULL},
            )
        if self._admission is None:
            return
        asks = [self._ask(request) for request in requests]
        refusal = self._admission.check(asks, self._clock.now_ns())
        if refusal is not None:
            raise _overloaded(refusal)

    def sent(self, request: AddRequest) -> None:
        if self._admission is not None:
            self._admission.sent(self._ask(request), self._clock.now_ns())

    def ended(self, request_id: str) -> None:
        if self._admission is not None:
            self._admission.ended(request_id)

    def take(self, load: LoadSnapshot | None) -> None:
        """The engine's load after its last step, where it comes with one."""
        if self._admission is not None and load is not None:
            self._admission.take(load)

    def restart(self) -> None:
        """A new engine process starts."""
        if self._admission is not None:
            self._admission.restart()

    def _ask(self, request: AddRequest) -> Ask:
        limit = request.sampling.max_tokens
        return Ask(
            request_id=request.request_id,
            num_prompt_tokens=len(request.prompt_token_ids),
            max_tokens=self._default_max_tokens if limit is None else limit,
            num_seqs=request.sampling.n,
            priority=request.priority,
            slo=SLO(request.slo_itl_ns, request.slo_ttft_ns),
        )


def _overloaded(refusal: Refusal) -> OverloadedError:
    target = refusal.target
    return OverloadedError(
        f"the server is at its capacity ({refusal.reason}): {_what_is_missed(refusal)}; try again "
        f"in {refusal.retry_after_seconds} s",
        retry_after_seconds=refusal.retry_after_seconds,
        code=refusal.reason,
        details={
            "reason": refusal.reason,
            "predicted": {"ttft_ms": round(refusal.ttft_ms), "itl_ms": round(refusal.itl_ms, 2)},
            "slo": {
                "ttft_ms": None if target.ttft_ns is None else target.ttft_ns / NS_PER_MS,
                "itl_ms": None if target.itl_ns is None else target.itl_ns / NS_PER_MS,
            },
            "attainable": {
                "ttft_ms": refusal.attainable_ttft_ms,
                "itl_ms": refusal.attainable_itl_ms,
            },
            "retry_after_seconds": refusal.retry_after_seconds,
        },
    )


def _what_is_missed(refusal: Refusal) -> str:
    if refusal.missed is Missed.PROMISES:
        return "with the request, others that were let in before would miss their targets"
    if refusal.missed is Missed.GAPS:
        assert refusal.target.itl_ns is not None
        return (
            f"the request would not have gaps within {refusal.target.itl_ns / NS_PER_MS:g} ms "
            f"(predicted: {refusal.itl_ms:.1f} ms)"
        )
    if refusal.missed is Missed.BATCH:
        assert refusal.target.itl_ns is not None
        return (
            "the request would have to wait until others end, for gaps to stay within "
            f"{refusal.target.itl_ns / NS_PER_MS:g} ms"
        )
    weighed = ""
    if refusal.reason == COSTLY:
        weighed = ", which is what so costly a prompt is given of its target"
    return (
        f"the request would not have its first token within {refusal.allowed_ttft_ms:.6g} ms"
        f"{weighed} (predicted: {refusal.ttft_ms:.0f} ms)"
    )
