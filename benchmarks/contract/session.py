"""What several bars need, measured once: the solo step, the long prompt alone, the capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from benchmarks.contract.mix import LONG, Mix, send
from benchmarks.contract.outcome import Outcome, Targets
from benchmarks.contract.steps import fitted
from benchmarks.cpu.takt_server import Columns, takt_server
from benchmarks.percentile import percentile

from takt.bench.load import LoadRun
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.durations import ResampledDuration
from takt.plan.simulate.result import SimulationResult
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.scheduler.slo import NO_SLO, SLO
from takt.scheduler.step_time import StepTimeModel

TTFT_MS = 3000.0
LONG_FACTOR = 5.0
LEAST_ITL_MS = 12.0
SOLO_FACTOR = 3.0
FIXED_BUDGET = 512
MAX_NUM_SEQS = 256
NUM_KV_TOKENS = 200_000
"""Of the simulated servers: like the real one's, more than these loads ever use."""
_RISE = 1.25


@dataclass(slots=True)
class Served:
    """A run and the server's own record of it."""

    outcome: Outcome
    run: LoadRun
    steps: Columns


def serve(
    model: str, arguments: Sequence[str], arrivals: Sequence[Arrival], *, keeps_targets: bool = True
) -> Served:
    """Starts a server, sends it the requests, and reads the record of its steps."""
    with takt_server(model, ["--max-num-seqs", str(MAX_NUM_SEQS), *arguments]) as server:
        run = send(server.url, arrivals, keeps_targets=keeps_targets)
        server.stop()
        return Served(Outcome(run), run, server.steps())


@dataclass
class Session:
    """The setting of a run of the benchmark; what is measured is kept."""

    model: str
    is_quick: bool
    given_capacity: float | None = None
    """Requests per second, found by a run before this one."""

    def seconds(self, full: float, quick: float) -> float:
        return quick if self.is_quick else full

    @property
    def pace_arguments(self) -> list[str]:
        itl, ttft = self.targets.itl_ms, self.targets.ttft_ms
        return ["--slo-itl-p99-ms", f"{itl:.3f}", "--slo-ttft-p99-ms", f"{ttft:.0f}"]

    @cached_property
    def alone(self) -> Served:
        """One short request at a time, and then the long prompt alone."""
        short = [Arrival(round(i * 2.5e9), 400, 64) for i in range(3)]
        long = [Arrival(round((9 + 5 * i) * 1e9), *LONG) for i in range(2 if self.is_quick else 4)]
        return serve(self.model, ["--calibrate"], [*short, *long], keeps_targets=False)

    @cached_property
    def targets(self) -> Targets:
        outcome = self.alone.outcome
        solo = np.concatenate([t.gaps_ms for t in outcome.times if not t.record.is_long])
        long_ms = percentile(outcome.ttft_ms(is_long=True), 50)
        itl_ms = max(LEAST_ITL_MS, SOLO_FACTOR * percentile(solo, 50))
        return Targets(itl_ms, TTFT_MS, LONG_FACTOR * long_ms)

    @cached_property
    def capacity(self) -> float:
        """Short requests per second: the highest rate, beside a long prompt every 5 s, at which a
        fixed budget's queue does not rise.

        The simulator, with a model of steps at a rate that is surely sustained, says where to look;
        the real server decides, in steps of 7 %.
        """
        if self.given_capacity is not None:
            return self.given_capacity
        seconds = self.seconds(120.0, 15.0)
        arguments = ["--scheduling-policy", "fcfs", "--calibrate"]
        first = serve(self.model, arguments, Mix(1.0, self.seconds(40.0, 15.0)).arrivals())
        rate = _simulated_capacity(fitted(first.steps))
        if self.is_quick:
            return rate
        holds = self._holds(rate, seconds)
        factor = 1.07 if holds else 1 / 1.07
        for _ in range(6):
            if self._holds(rate * factor, seconds) is not holds:
                return rate if holds else rate * factor
            rate *= factor
        return rate

    def _holds(self, rate: float, seconds: float) -> bool:
        arguments = ["--scheduling-policy", "fcfs", "--max-num-batched-tokens", str(FIXED_BUDGET)]
        served = serve(self.model, arguments, Mix(rate, seconds).arrivals())
        outcome = served.outcome
        arrived = np.array([(t.record.planned_ns - outcome.start_ns) / 1e9 for t in outcome.times])
        waits = np.array([t.ttft_ms for t in outcome.times])
        return not rises(arrived, waits, seconds)

    @cached_property
    def mixed(self) -> Served:
        """Pace at 70 % of the capacity: the run that several bars look at."""
        return serve(self.model, self.pace_arguments, self.mix(0.7, self.mixed_seconds).arrivals())

    @property
    def mixed_seconds(self) -> float:
        return self.seconds(640.0, 20.0)

    def mix(self, share: float, seconds: float, seed: int = 1) -> Mix:
        return Mix(self.capacity, seconds, seed, self.targets.long_ttft_ms, share)


def rises(arrived_s: np.ndarray, waits_ms: np.ndarray, seconds: float) -> bool:
    """Whether requests of the last third wait longer than those of the middle one."""
    middle = waits_ms[(arrived_s >= seconds / 3) & (arrived_s < 2 * seconds / 3)]
    last = waits_ms[arrived_s >= 2 * seconds / 3]
    if not len(middle) or not len(last):
        return True
    return bool(last.mean() > _RISE * middle.mean() + 100.0)


def _simulated_capacity(model: StepTimeModel) -> float:
    low, high = 0.05, 20.0
    for _ in range(8):
        rate = (low * high) ** 0.5
        arrivals = Mix(rate, 120.0).arrivals()
        result = simulated(model, arrivals, budget=FIXED_BUDGET, warm_up_share=0.0)
        arrived = np.array([arrivals[i].time_ns / 1e9 for i in result.served])
        low, high = (low, rate) if rises(arrived, result.ttft_s * 1e3, 120.0) else (rate, high)
    return low


def simulated(
    model: StepTimeModel,
    arrivals: Sequence[Arrival],
    *,
    policy: str = "fcfs",
    slo: SLO = NO_SLO,
    budget: int = FIXED_BUDGET,
    max_num_seqs: int = MAX_NUM_SEQS,
    warm_up_share: float = 0.1,
    seed: int = 1,
) -> SimulationResult:
    """These arrivals on a virtual clock, with steps as long as the model's own residuals say."""
    server = SimulatedServer(
        ResampledDuration(model, seed=seed),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        num_kv_tokens=NUM_KV_TOKENS,
        scheduling_policy=policy,
        slo=slo,
        step_time=model,
    )
    return simulate(server, arrivals, warm_up_share=warm_up_share)
