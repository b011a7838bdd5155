"""One replica on a virtual clock: arrivals in, the engine's scheduler, steps of modelled length."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from takt.config import CacheOptions, SchedulerOptions
from takt.kvcache.manager import KVCacheManager
from takt.kvcache.sizing import blocks_for_tokens
from takt.plan.errors import PlanInputError, require_whole
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.contract import LaneContract
from takt.plan.simulate.durations import StepDuration
from takt.plan.simulate.kv_io import KVTransfers, ready_times_ns
from takt.plan.simulate.lane import Lane
from takt.plan.simulate.result import SimulationResult
from takt.plan.simulate.speed_trace import SpeedTrace
from takt.scheduler.calibration_steps import calibration_steps
from takt.scheduler.create import create_scheduler, step_limits
from takt.scheduler.learned_step_time import LearnedStepTime
from takt.scheduler.slo import NO_SLO, NS_PER_MS, SLO
from takt.scheduler.step_time import StepTimeModel
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """One data-parallel replica.

    A pipeline keeps `num_stages` micro-batches in flight, each with a scheduler and a share of
    seats and KV blocks of its own; a new request joins the one with the fewest requests. Stages
    take equal parts of a step.
    """

    duration: StepDuration
    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_tokens: int
    """Tokens that the KV pool holds."""
    block_size: int = 16
    num_stages: int = 1
    scheduling_policy: str = "fcfs"
    kv_reservation: str = "full"
    transfers: KVTransfers | None = None
    slo: SLO = NO_SLO
    admission: str = "queue"
    """Or refuse, which needs targets: who would miss them is not served."""
    step_time: StepTimeModel | None = None
    """What pace believes at first; learned from the durations of calibration steps if None."""
    speed: SpeedTrace | None = None
    """Of the machine while the load runs; the same all the time if None."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_kv_tokens", "num_stages"):
            require_whole(name, getattr(self, name))


def simulate(
    server: SimulatedServer, arrivals: Sequence[Arrival], *, warm_up_share: float = 0.1
) -> SimulationResult:
    """Serves all arrivals, which are in the order of time, and reports those after the warm-up.

    Gaps are those of steps that ended between the end of the warm-up and the last arrival, while
    the load was on. Raises `PlanInputError` if a request can never be served.
    """
    if not arrivals:
        raise PlanInputError("there is no request to simulate")
    if not 0 <= warm_up_share < 1:
        raise PlanInputError(f"the warm-up's share lies within 0 and 1, got {warm_up_share}")
    first_measured = int(len(arrivals) * warm_up_share)
    window = (arrivals[first_measured].time_ns, arrivals[-1].time_ns)
    if window[0] >= window[1]:
        window = (0, 1 << 62)  # so few requests that all that happens counts
    lanes = _make_lanes(server, arrivals, window)
    _run(lanes, arrivals, ready_times_ns(arrivals, server.transfers))
    return _collect(lanes, arrivals, first_measured, window)


def _make_lanes(
    server: SimulatedServer, arrivals: Sequence[Arrival], window: tuple[int, int]
) -> list[Lane]:
    longest = max(a.num_prompt_tokens + a.num_output_tokens for a in arrivals)
    num_stages = server.num_stages
    max_num_seqs = max(1, server.max_num_seqs // num_stages)
    blocks = server.num_kv_tokens // server.block_size // num_stages
    if blocks < blocks_for_tokens(longest, server.block_size):
        raise PlanInputError(
            f"a request of {longest} tokens does not fit into a KV pool of "
            f"{blocks * server.block_size} tokens per micro-batch"
        )
    # The pool counts blocks only: one layer of one head stands for all.
    spec = KVCacheSpec((KVGroupSpec((0,), None),), 1, 1, server.block_size, KVDtype.BF16)
    options = SchedulerOptions(
        scheduling_policy=server.scheduling_policy,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(server.max_num_batched_tokens, max_num_seqs),
        slo_itl_p99_ms=_ms(server.slo.itl_ns),
        slo_ttft_p99_ms=_ms(server.slo.ttft_ns),
        admission=server.admission,
    )
    cache = CacheOptions(
        block_size=server.block_size,
        enable_prefix_caching=False,
        kv_reservation=server.kv_reservation,
    )
    stage_free_ns = [0.0] * num_stages
    lanes = []
    for _ in range(num_stages):
        kv = KVCacheManager(
            spec, [blocks], False, max_num_seqs=max_num_seqs, max_model_len=longest + 1
        )
        learned = _learned(server, options, longest + 1) if options.models_time else None
        scheduler = create_scheduler(options, cache, kv, longest + 1, predictor=learned)
        contract = LaneContract(server.slo, learned, refuses=server.admission == "refuse")
        lanes.append(
            Lane(
                scheduler,
                server.duration,
                stage_free_ns,
                server.transfers,
                window,
                contract,
                server.speed,
            )
        )
    return lanes


def _learned(
    server: SimulatedServer, options: SchedulerOptions, max_model_len: int
) -> LearnedStepTime:
    """What a server knows after its calibration, were every step exactly as long as expected."""
    if server.step_time is not None:
        return LearnedStepTime(server.step_time)
    steps = calibration_steps(step_limits(options, max_model_len))
    samples = [(step.features, server.duration.predict_ns(step.features)) for step in steps]
    return LearnedStepTime(StepTimeModel.fit(samples))


def _ms(target_ns: int | None) -> float | None:
    return None if target_ns is None else target_ns / NS_PER_MS


def _run(lanes: list[Lane], arrivals: Sequence[Arrival], ready_ns: list[int]) -> None:
    """Steps and arrivals in the order of time; an arrival at a step's border is in time for it."""
    awake: list[tuple[float, int]] = []  # (time of the next step, lane)
    asleep = set(range(len(lanes)))
    position, count = 0, len(arrivals)
    while position < count or awake:
        if position < count and (not awake or ready_ns[position] <= awake[0][0]):
            index = min(range(len(lanes)), key=lambda i: lanes[i].num_requests)
            lanes[index].add(position, arrivals[position])
            if index in asleep:
                asleep.remove(index)
                heapq.heappush(awake, (float(ready_ns[position]), index))
            position += 1
            continue
        now, index = heapq.heappop(awake)
        end = lanes[index].step(now)
        if end is None:
            asleep.add(index)
        else:
            heapq.heappush(awake, (end, index))


def _collect(
    lanes: list[Lane], arrivals: Sequence[Arrival], first: int, window: tuple[int, int]
) -> SimulationResult:
    first_ns = np.zeros(len(arrivals))
    last_ns = np.zeros(len(arrivals))
    for lane in lanes:
        for times, into in ((lane.first_token_ns, first_ns), (lane.last_token_ns, last_ns)):
            into[list(times.keys())] = list(times.values())
    arrived = np.array([a.time_ns for a in arrivals], dtype=np.float64)
    outputs = np.array([a.num_output_tokens for a in arrivals], dtype=np.float64)
    refused = {index for lane in lanes for index in lane.contract.refused}
    is_served = np.array([index not in refused for index in range(len(arrivals))])
    outputs[~is_served] = 0.0
    served = np.flatnonzero(is_served[first:]) + first
    met = [lane.contract.count_met(arrivals, first, first_ns) for lane in lanes]
    spread = (last_ns - first_ns)[served]
    num_gaps = outputs[served] - 1
    span_ns = min(window[1], int(last_ns.max())) - window[0]
    gaps = array("d")
    counts = array("d")
    ends = array("d")
    for lane in lanes:
        gaps.extend(lane.gaps_ns)
        counts.extend(lane.gap_counts)
        ends.extend(lane.gap_ends_ns)
    return SimulationResult(
        ttft_s=(first_ns - arrived)[served] / 1e9,
        e2e_s=(last_ns - arrived)[served] / 1e9,
        tpot_s=(spread[num_gaps > 0] / num_gaps[num_gaps > 0]) / 1e9,
        gaps_s=np.array(gaps, dtype=np.float64) / 1e9,
        gap_counts=np.array(counts, dtype=np.float64),
        gap_ends_s=np.array(ends, dtype=np.float64) / 1e9,
        window_s=span_ns / 1e9,
        num_steps=sum(lane.num_steps for lane in lanes),
        num_output_tokens=int(outputs.sum()),
        mean_running=sum(lane.running_ns for lane in lanes) / span_ns,
        busy_share=sum(lane.busy_ns for lane in lanes) / len(lanes) / span_ns,
        num_preemptions=sum(lane.num_preemptions for lane in lanes),
        peak_kv_share=max(lane.peak_kv_share for lane in lanes),
        num_refused=sum(index >= first for index in refused),
        num_met=sum(met),
        served=served,
    )
