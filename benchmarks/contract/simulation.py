"""The contract's mixed load on a virtual clock, on machines that are disturbed in several ways.

    python -m benchmarks.contract.simulation [MACHINE ...] [--seeds N] [--load SHARE] [--quick]

The scheduler, admission and step-time model are the server's own; only steps are drawn. Prints, for
pace and for fixed budgets, the worst of the windows and the times to the first token.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass

import numpy as np
from benchmarks.contract.capacity import CAPACITY_S, rises
from benchmarks.contract.mix import LONG, Mix
from benchmarks.contract.session import (
    BUDGETS,
    FIXED_BUDGET,
    LEAST_ITL_MS,
    LONG_FACTOR,
    MAX_NUM_SEQS,
    NUM_KV_TOKENS,
    SOLO_FACTOR,
    TTFT_MS,
)
from benchmarks.percentile import percentile
from rich.console import Console
from rich.table import Table

from takt.plan.simulate.arrivals import Arrival
from takt.plan.simulate.durations import DisturbedDuration, StepDuration
from takt.plan.simulate.result import SimulationResult
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.scheduler.slo import NO_SLO, SLO
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

WINDOW_S = 30.0
WARM_UP_S = 20.0

FAST = StepTimeModel(
    (StepCoefficients(3.2e6, 4e4, 0, 800, 0), StepCoefficients(5e5, 6.2e5, 4.3e5, 400, 220))
)
"""SmolLM2-135M on two quiet cores: 3.6 ms a step alone."""
SLOW = StepTimeModel(
    (StepCoefficients(8.3e6, 7e5, 9e5, 800, 220), StepCoefficients(0, 1.1e6, 1.05e6, 400, 220))
)
"""The same on two cores that neighbours use too: 9.4 ms, and a long prompt alone takes 4 s."""


@dataclass(frozen=True, slots=True)
class Machine:
    model: StepTimeModel
    noise: float = 0.06
    outliers: float = 0.0
    slowness: float = 1.0

    def duration(self, seed: int) -> StepDuration:
        return DisturbedDuration(
            self.model,
            noise=self.noise,
            outliers=self.outliers,
            slowness=self.slowness,
            seed=seed,
        )


MACHINES = {
    "quiet": Machine(FAST),
    "fast, outliers": Machine(FAST, outliers=0.01),
    "fast, outliers, slow stretches": Machine(FAST, outliers=0.01, slowness=1.5),
    "slow": Machine(SLOW),
    "slow, outliers": Machine(SLOW, outliers=0.01),
    "slow, outliers, slow stretches": Machine(SLOW, outliers=0.01, slowness=1.5),
}


@dataclass(frozen=True, slots=True)
class Targets:
    itl_ms: float
    long_ttft_ms: float

    @classmethod
    def of(cls, model: StepTimeModel) -> Targets:
        """As on a real server they are set: from a step and a long prompt alone."""
        solo_ms = model.predict_ns(StepFeatures(1, 0, 432, 432)) / 1e6
        alone = simulated(model, model, [Arrival(0, *LONG)], FIXED_BUDGET)
        return cls(
            max(LEAST_ITL_MS, SOLO_FACTOR * solo_ms), LONG_FACTOR * float(alone.ttft_s[0]) * 1e3
        )


def simulated(
    model: StepTimeModel,
    duration: StepDuration,
    arrivals: list[Arrival],
    budget: int,
    slo: SLO = NO_SLO,
) -> SimulationResult:
    """Pace with targets, a fixed budget without."""
    server = SimulatedServer(
        duration,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=budget,
        num_kv_tokens=NUM_KV_TOKENS,
        scheduling_policy="pace" if slo.is_given else "fcfs",
        slo=slo,
        step_time=model,
    )
    return simulate(server, arrivals, warm_up_share=0.0)


def capacity(machine: Machine) -> float:
    """The highest rate at which the fixed budget's queue does not rise, as `Session.capacity`."""
    low, high = 0.05, 20.0
    while high / low > 1.03:
        rate = math.sqrt(low * high)
        arrivals = Mix(rate, CAPACITY_S).arrivals()
        result = simulated(machine.model, machine.duration(1), arrivals, FIXED_BUDGET)
        arrived = np.array([arrivals[i].time_ns / 1e9 for i in result.served])
        if rises(arrived, result.ttft_s * 1e3, CAPACITY_S):
            high = rate
        else:
            low = rate
    return low


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; times in milliseconds."""

    worst_window: float
    num_missed_windows: int
    late_percent: float
    short_p50: float
    short_p99: float
    longest_long: float

    @classmethod
    def of(cls, result: SimulationResult, arrivals: list[Arrival], targets: Targets) -> Outcome:
        windows = 1e3 * np.array(result.itl_by_window_s(0.99, WINDOW_S, WARM_UP_S))
        is_long = np.array([arrivals[i].num_prompt_tokens == LONG[0] for i in result.served])
        ttft_ms = 1e3 * result.ttft_s
        late = result.gap_counts[1e3 * result.gaps_s > targets.itl_ms].sum()
        return cls(
            float(windows.max()),
            int((windows > targets.itl_ms).sum()),
            100 * float(late / result.gap_counts.sum()),
            percentile(ttft_ms[~is_long], 50),
            percentile(ttft_ms[~is_long], 99),
            float(ttft_ms[is_long].max()),
        )


def measure(machine: Machine, rate: float, load: float, seconds: float, seed: int) -> list[Outcome]:
    """Pace, and each fixed budget on the same arrivals."""
    targets = Targets.of(machine.model)
    arrivals = Mix(rate, seconds, seed, targets.long_ttft_ms, load).arrivals()
    slo = SLO.from_ms(targets.itl_ms, TTFT_MS)
    runs = [simulated(machine.model, machine.duration(seed), arrivals, FIXED_BUDGET, slo)]
    for budget in BUDGETS:
        runs.append(simulated(machine.model, machine.duration(seed), arrivals, budget))
    return [Outcome.of(run, arrivals, targets) for run in runs]


def main() -> int:
    options = _read_arguments()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    seconds = 80.0 if options.quick else 640.0
    for name in options.machines or MACHINES:
        machine = MACHINES[name]
        targets, rate = Targets.of(machine.model), capacity(machine)
        title = (
            f"{name}: capacity {rate:.3g} short prompts per s, {100 * options.load:.0f} % of it; "
            f"targets: ITL {targets.itl_ms:.1f} ms, TTFT {TTFT_MS:.0f} and "
            f"{targets.long_ttft_ms:.0f} ms"
        )
        table = Table(title=title)
        for heading in (
            "seed", "policy", "worst window ms", "windows missed", "late %", "short P50 ms",
            "short P99 ms", "longest long ms",
        ):  # fmt: skip
            table.add_column(heading, justify="right")
        for seed in range(1, options.seeds + 1):
            outcomes = measure(machine, rate, options.load, seconds, seed)
            names = ("pace", *(f"fcfs {budget}" for budget in BUDGETS))
            for policy, outcome in zip(names, outcomes, strict=True):
                table.add_row(*_row(seed, policy, outcome))
        console.print(table)
    return 0


def _row(seed: int, policy: str, outcome: Outcome) -> list[str]:
    return [
        str(seed),
        policy,
        f"{outcome.worst_window:.1f}",
        str(outcome.num_missed_windows),
        f"{outcome.late_percent:.2f}",
        f"{outcome.short_p50:.0f}",
        f"{outcome.short_p99:.0f}",
        f"{outcome.longest_long:.0f}",
    ]


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contract.simulation", description=__doc__
    )
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help="all if none is named")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--load", type=float, default=0.7, help="share of the capacity")
    parser.add_argument("--quick", action="store_true", help="80 s instead of 640")
    options = parser.parse_args()
    if unknown := [name for name in options.machines if name not in MACHINES]:
        parser.error(f"no such machine: {', '.join(unknown)}; there are {', '.join(MACHINES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
