"""Several engines behind one client: each request goes to one of them, and on if that one dies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec

from takt.clock import Clock, MonotonicClock
from takt.config import EngineConfig
from takt.engine.client import EngineState, ReplicaStatus
from takt.engine.host_share import HostShare, divide_host
from takt.engine.messages import AddRequest, EngineReady, RequestOutput, StepStats
from takt.engine.offloading import Journey, Offloading
from takt.engine.placement import Placement
from takt.engine.proc_client import ProcessEngineClient
from takt.engine.requests import with_seed
from takt.engine.streams import WithdrawnError
from takt.errors import EngineDeadError, OverloadedError
from takt.kvcache.prefix_directory import PrefixDirectory
from takt.ops.create import num_usable_cpus
from takt.parallel.cpu_topology import read_cpu_topology
from takt.scheduler.offload import OffloadPolicy
from takt.scheduler.replica_load import ReplicaLoad, Work
from takt.scheduler.routing import Route, Router

MAX_RESTARTS = 1
"""Deaths that a request may survive by starting again elsewhere: one that has seen two may be what
kills them."""

OnProgress = Callable[[str, int, int], None]
MakeClient = Callable[..., ProcessEngineClient]


@dataclass(slots=True)
class _Replica:
    number: int
    client: ProcessEngineClient
    load: ReplicaLoad
    known_epoch: int = 0
    """The engine process that load and directory are of."""
    num_offloaded: int = 0


class ReplicatedEngineClient:
    """An `EngineClient` over `data_parallel_size` engines, each a process with its own ranks.

    A request goes to the replica that would finish it first; where that one does not let it in, to
    the next. One of which nothing has come yet starts again on another replica when its own dies,
    and one that waits moves where there is more room (`Offloading`). Ready while one replica is.
    `on_dead` is told when one has died too often.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: OnProgress | None = None,
        *,
        on_step: Callable[[StepStats], None] | None = None,
        on_dead: Callable[[str], None] | None = None,
        max_engine_deaths: int = 3,
        make_client: MakeClient = ProcessEngineClient,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._on_step = on_step
        self._default_max_tokens = config.scheduler.default_max_tokens
        self._shares_prefixes = config.cache.enable_prefix_caching
        shares = divide_host(config, read_cpu_topology(), num_usable_cpus())
        progress = _Progress(on_progress, len(shares))
        self._replicas = [
            _Replica(
                number,
                make_client(
                    one,
                    partial(progress.report, number),
                    on_step=partial(self._take_step, number),
                    on_dead=on_dead,
                    max_engine_deaths=max_engine_deaths,
                    share=share,
                ),
                ReplicaLoad(
                    max_num_seqs=one.scheduler.max_num_seqs,
                    max_num_batched_tokens=one.scheduler.max_num_batched_tokens,
                    reserves_output=one.cache.kv_reservation == "full",
                ),
            )
            for number, (one, share) in enumerate(shares)
        ]
        self._placement = _placement([share for _, share in shares])
        self._router: Router | None = None
        self._journeys: dict[str, Journey] = {}
        self._policy = OffloadPolicy() if config.parallel.cooperative_offload else None
        self._offloading: Offloading | None = None

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all replicas and returns when each is ready; raises the first one's error."""
        tasks = [asyncio.create_task(r.client.start()) for r in self._replicas]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()
            raise
        infos = [replica.client.info for replica in self._replicas]
        directory = None
        if self._shares_prefixes:
            directory = PrefixDirectory(infos[0].kv_block_size, [0] * len(infos))
        self._router = Router([replica.load for replica in self._replicas], directory)
        if self._policy is not None:
            self._offloading = Offloading(self._policy, self._router, self._journeys)

    async def close(self, drain_timeout_seconds: float = 0.0) -> None:
        """As a single engine's, for all of them at once."""
        await asyncio.gather(*(r.client.close(drain_timeout_seconds) for r in self._replicas))

    # -- EngineClient -------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        """Ready while one replica is."""
        states = {replica.client.state for replica in self._replicas}
        return next(state for state in _BEST_FIRST if state in states)

    @property
    def info(self) -> EngineReady:
        """Of one replica; lengths are those that any of them takes."""
        infos = [replica.client.info for replica in self._replicas]
        return msgspec.structs.replace(
            infos[0],
            max_model_len=min(info.max_model_len for info in infos),
            num_kv_tokens=min(info.num_kv_tokens for info in infos),
        )

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        return [
            msgspec.structs.replace(
                status, number=replica.number, num_offloaded=replica.num_offloaded
            )
            for replica in self._replicas
            for status in replica.client.replicas
        ]

    @property
    def placement(self) -> Placement | None:
        """Which CPUs all engines together, and the server, should have."""
        return self._placement

    @property
    def engine_pids(self) -> list[int]:
        """Of all engines that run."""
        return [pid for replica in self._replicas for pid in replica.client.engine_pids]

    @property
    def num_outstanding(self) -> int:
        """Sequences that the engines still owe tokens."""
        return sum(replica.client.num_outstanding for replica in self._replicas)

    def check(self, requests: Sequence[AddRequest]) -> None:
        """Of several prompts each replica judges its own, when they are sent."""
        if not any(True for _ in self._alive()):
            raise EngineDeadError("no replica of the engine is ready")

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        if request.request_id in self._journeys:
            raise ValueError(f"request_id {request.request_id} is in use")
        # The seed is settled here, so that a restarted request gives the same tokens.
        request = msgspec.structs.replace(request, sampling=with_seed(request.sampling))
        journey = Journey(request, self._route(request))
        replica = self._admit(journey)
        self._journeys[request.request_id] = journey
        try:
            while True:
                failure: EngineDeadError | None = None
                try:
                    async with aclosing(self._run(journey, replica)) as outputs:
                        async for output in outputs:
                            journey.has_output = True
                            yield output
                    return
                except WithdrawnError:
                    pass
                except EngineDeadError as error:
                    journey.num_deaths += 1
                    if journey.has_output or journey.num_deaths > MAX_RESTARTS:
                        raise
                    failure = error
                if journey.is_aborted:
                    for choice in range(request.sampling.n):
                        yield RequestOutput(request.request_id, choice, [], finish_reason="abort")
                    return
                replica = self._next(journey, failure)
        finally:
            del self._journeys[request.request_id]

    def abort(self, request_id: str, choice: int | None = None) -> None:
        journey = self._journeys.get(request_id)
        if journey is not None:
            # On its way from one replica to another no engine has it.
            journey.is_aborted = journey.is_aborted or choice is None
            self._replicas[journey.replica].client.abort(request_id, choice)

    # -- routing ------------------------------------------------------------------------------

    def _route(self, request: AddRequest) -> Route:
        if self._router is None:
            raise EngineDeadError("the engines are starting")
        sampling = request.sampling
        limit = sampling.max_tokens
        work = Work(
            num_prompt_tokens=len(request.prompt_token_ids),
            num_seqs=sampling.n,
            max_tokens=max(1, self._default_max_tokens if limit is None else limit),
        )
        # What was generated before is shared as such, if at all: nobody's prompt would find it.
        num_given = len(request.prompt_token_ids) - request.num_generated_before
        return self._router.route(
            request.prompt_token_ids[:num_given],
            work,
            request.cache_salt,
            # Prompt positions that are scored are computed.
            shares_prefix=sampling.prompt_logprobs is None,
        )

    def _admit(self, journey: Journey) -> _Replica:
        """The first in the router's order that lets the request in; raises why the first of them
        does not, if none does."""
        refusal: OverloadedError | None = None
        for replica in self._order(journey):
            try:
                replica.client.check([journey.request])
            except OverloadedError as error:
                refusal = refusal or error
            else:
                return replica
        raise refusal or EngineDeadError("no replica of the engine is ready")

    def _next(self, journey: Journey, failure: EngineDeadError | None) -> _Replica:
        """Where a request goes on that was let in before."""
        replicas = self._order(journey)
        if not replicas:
            raise failure or EngineDeadError("no replica of the engine is ready")
        wanted = [replica for replica in replicas if replica.number == journey.destination]
        return (wanted or replicas)[0]

    def _order(self, journey: Journey) -> list[_Replica]:
        """Replicas that it could go to, the best in front; never back to where it was, whose last
        words of it may still be on their way."""
        assert self._router is not None
        alive = [replica.number for replica in self._alive() if replica.number not in journey.left]
        order = self._router.order(journey.route, alive, self._clock.now_ns())
        return [self._replicas[number] for number in order]

    async def _run(
        self, journey: Journey, replica: _Replica
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of the request, or of what is left of it, on one replica."""
        assert self._router is not None
        request, load = journey.rest(), replica.load
        is_rest = request is not journey.request
        keeps_tokens = self._offloading is not None and journey.can_resume
        route = self._route(request) if is_rest else journey.route
        journey.replica, journey.destination = replica.number, None
        self._router.sent(request.request_id, route, replica.number, self._clock.now_ns())
        finish_reason: str | None = None
        try:
            async with aclosing(replica.client.generate(request, is_checked=True)) as outputs:
                async for output in outputs:
                    load.received(request.request_id, len(output.token_ids))
                    if keeps_tokens:
                        journey.token_ids += output.token_ids
                    if is_rest:  # the client has been told
                        output.num_cached_tokens = output.first_scheduled_ns = None
                    finish_reason = output.finish_reason or finish_reason
                    yield output
        finally:
            journey.left.add(replica.number)
            load.ended(request.request_id, is_complete=finish_reason in ("stop", "length"))

    def _alive(self) -> Iterator[_Replica]:
        """Replicas that take requests; of a new engine nothing is known that was of the old."""
        for replica in self._replicas:
            client = replica.client
            if client.state is not EngineState.READY:
                continue
            if client.epoch != replica.known_epoch:
                replica.known_epoch = client.epoch
                if self._router is not None:
                    info = client.info
                    num_blocks = max(info.kv_num_blocks) + max(info.kv_num_host_blocks, default=0)
                    self._router.restart(replica.number, info.num_kv_tokens, num_blocks)
                    replica.load.take(info.load)
            yield replica

    def _take_step(self, number: int, stats: StepStats) -> None:
        self._replicas[number].load.step(stats)
        if self._on_step is not None:
            self._on_step(stats)
        if self._offloading is not None:
            self._offloading.preempted(stats.preempted_ids)
            now_ns = self._clock.now_ns()
            if self._offloading.is_pressed(number, now_ns):
                self._offload(number, now_ns)

    def _offload(self, source: int, now_ns: int) -> None:
        assert self._offloading is not None
        others = [replica.number for replica in self._alive() if replica.number != source]
        for move in self._offloading.moves(source, others, now_ns):
            if self._replicas[source].client.withdraw(move.request_id):
                journey = self._journeys[move.request_id]
                journey.destination, journey.has_moved = move.destination, True
                self._replicas[source].num_offloaded += 1
        if self._offloading.may_copy(source, now_ns):
            self._replicas[source].client.offload_blocks(self._offloading.policy.hot_share)


_BEST_FIRST = (
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.STARTING,
    EngineState.DRAINING,
    EngineState.DEAD,
)


class _Progress:
    """Replicas load the same at the same time: what all of them have done, and its total."""

    def __init__(self, on_progress: OnProgress | None, num_replicas: int) -> None:
        self._on_progress = on_progress
        self._done: dict[str, list[tuple[int, int]]] = {}
        self._num_replicas = num_replicas

    def report(self, number: int, stage: str, done: int, total: int) -> None:
        if self._on_progress is None:
            return
        parts = self._done.setdefault(stage, [(0, total)] * self._num_replicas)
        parts[number] = (done, total)
        self._on_progress(stage, sum(d for d, _ in parts), sum(t for _, t in parts))


def _placement(shares: Sequence[HostShare]) -> Placement | None:
    placements = [share.placement for share in shares if share.placement is not None]
    if not placements:
        return None
    engine = itertools.chain.from_iterable(placement.engine for placement in placements)
    return Placement(tuple(engine), placements[0].server)
