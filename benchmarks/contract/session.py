"""What several bars need, measured once: the solo step, the long prompt alone, the capacity."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from benchmarks.contract.capacity import (
    CAPACITY_S,
    RisingQueue,
    by_simulation,
    rises,
    search,
)
from benchmarks.contract.mix import LONG, Mix, send
from benchmarks.contract.outcome import Outcome, Targets
from benchmarks.contract.steps import fitted, slowdown
from benchmarks.cpu.takt_server import Columns, takt_server
from benchmarks.percentile import percentile

from takt.bench.load import LoadRun
from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.measured_steps import MeasuredHalves, MeasuredSteps
from takt.plan.simulate.result import SimulationResult
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.plan.simulate.speed_trace import SpeedTrace
from takt.scheduler.slo import NO_SLO, SLO

TTFT_MS = 3000.0
LONG_FACTOR = 5.0
LEAST_ITL_MS = 12.0
SOLO_FACTOR = 3.0
FIXED_BUDGET = 512
FIXED_ARGUMENTS = ("--scheduling-policy", "fcfs", "--max-num-batched-tokens", str(FIXED_BUDGET))
MAX_NUM_SEQS = 256
NUM_KV_TOKENS = 200_000
"""Of the simulated servers: like the real one's, more than these loads ever use."""
FIRST_S = 40.0
MIXED_S = 640.0
BESIDE_S = 115.0
"""Of the fixed budgets beside it: three windows."""
BUDGETS = (512, 2048)


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
    def first(self) -> Served:
        """A run of the mix whose steps say where to look for the capacity."""
        arrivals = Mix(1.0, self.seconds(FIRST_S, 15.0)).arrivals()
        return serve(self.model, ["--scheduling-policy", "fcfs", "--calibrate"], arrivals)

    @cached_property
    def first_steps(self) -> MeasuredSteps:
        return fitted(self.first.steps)

    @cached_property
    def capacity(self) -> float:
        """Short requests per second: the highest rate, beside a long prompt every 5 s, at which a
        fixed budget's queue does not rise."""
        if self.given_capacity is not None:
            return self.given_capacity
        guess = self.simulated_capacity(self.first_steps)
        return guess if self.is_quick else search(self._holds, guess)

    def _holds(self, rate: float) -> bool:
        """On a server that is not waited for once its queue has risen."""
        arrivals = Mix(rate, CAPACITY_S).arrivals()
        judge = RisingQueue(CAPACITY_S)
        arguments = ["--max-num-seqs", str(MAX_NUM_SEQS), *FIXED_ARGUMENTS]
        with takt_server(self.model, arguments) as server:
            run = send(server.url, arrivals, gives_up=judge)
        does_hold = not run.was_interrupted
        if does_hold:
            outcome = Outcome(run)
            planned_ns = np.array([t.record.planned_ns for t in outcome.times])
            waits = np.array([t.ttft_ms for t in outcome.times])
            does_hold = not rises((planned_ns - outcome.start_ns) / 1e9, waits, CAPACITY_S)
        verdict = "holds" if does_hold else "the queue rises"
        print(f"  {rate:.4g} short requests per s: {verdict}", file=sys.stderr, flush=True)
        return does_hold

    def simulated_capacity(
        self, measured: MeasuredSteps, scale: int = 1, policy: str = "fcfs", slo: SLO = NO_SLO
    ) -> float:
        """Of the mix at a scale, by simulation with these steps."""

        def rises_at(mix: Mix) -> bool:
            arrivals = mix.arrivals()
            result = simulated(measured, arrivals, policy=policy, slo=slo, warm_up_share=0.0)
            arrived = np.array([arrivals[i].time_ns / 1e9 for i in result.served])
            return rises(arrived, result.ttft_s * 1e3, mix.seconds)

        return by_simulation(rises_at, scale)

    @cached_property
    def mixed(self) -> Served:
        """Pace at 70 % of the capacity: the run that several bars look at."""
        arrivals = self.mix(0.7, self.seconds(MIXED_S, 20.0)).arrivals()
        return serve(self.model, self.pace_arguments, arrivals)

    @cached_property
    def beside(self) -> dict[str, Served]:
        """Fixed budgets on the beginning of the same trace, by name: its windows are alike."""
        arrivals = self.mix(0.7, self.seconds(BESIDE_S, 15.0)).arrivals()
        return {
            f"fcfs {budget}": serve(
                self.model,
                ["--scheduling-policy", "fcfs", "--max-num-batched-tokens", str(budget)],
                arrivals,
                keeps_targets=False,
            )
            for budget in BUDGETS
        }

    def mix(self, share: float, seconds: float, seed: int = 1) -> Mix:
        return Mix(self.capacity, seconds, seed, self.targets.long_ttft_ms, share)

    def speed(self, served: Served) -> dict[str, float]:
        """How many times as long steps took as those from which the capacity was searched."""
        if "first" not in self.__dict__:
            return {}
        return {"steps against those of the capacity, x": slowdown(served.steps, self.first_steps)}


def simulated(
    measured: MeasuredSteps | MeasuredHalves,
    arrivals: Sequence[Arrival],
    *,
    policy: str = "fcfs",
    slo: SLO = NO_SLO,
    budget: int = FIXED_BUDGET,
    max_num_seqs: int = MAX_NUM_SEQS,
    warm_up_share: float = 0.1,
    seed: int = 1,
    speed: SpeedTrace | None = None,
) -> SimulationResult:
    """These arrivals on a virtual clock, with residuals drawn from those that were measured."""
    server = SimulatedServer(
        measured.drawn(seed),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        num_kv_tokens=NUM_KV_TOKENS,
        scheduling_policy=policy,
        slo=slo,
        step_time=measured.known(),
        speed=speed,
    )
    return simulate(server, arrivals, warm_up_share=warm_up_share)
