"""The same server written a second time, as SimPy processes that share no code with ours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from takt.plan.simulate.arrivals import Arrival, LengthDistribution, poisson_arrivals
from takt.plan.simulate.simulator import SimulatedServer, simulate
from takt.scheduler.step_time import StepCoefficients, StepTimeModel

simpy = pytest.importorskip("simpy")

MEMORY = StepCoefficients(4e6, 1e4, 0.0, 20.0, 0.0)
COMPUTE = StepCoefficients(2e6, 3e4, 3e4, 20.0, 0.0)
MAX_NUM_SEQS = 48
MAX_NUM_BATCHED_TOKENS = 128


def step_s(num_decodes: int, num_prefill: int, contexts: int) -> float:
    memory = 4e-3 + 1e-5 * num_decodes + 2e-8 * contexts
    compute = 2e-3 + 3e-5 * num_decodes + 3e-5 * num_prefill + 2e-8 * contexts
    return max(memory, compute)


class Job:
    def __init__(self, arrival: Arrival, now: float) -> None:
        self.prompt, self.output = arrival.num_prompt_tokens, arrival.num_output_tokens
        self.arrived, self.done_prompt, self.made = now, 0, 0
        self.stamps: list[float] = []


def simpy_server(arrivals: list[Arrival]) -> list[Job]:
    env = simpy.Environment()
    waiting: list[Job] = []
    jobs: list[Job] = []
    bell = [env.event()]

    def source() -> Iterator[object]:
        for arrival in arrivals:
            yield env.timeout(arrival.time_ns / 1e9 - env.now)
            job = Job(arrival, env.now)
            jobs.append(job)
            waiting.append(job)
            if not bell[0].triggered:
                bell[0].succeed()

    def worker() -> Iterator[object]:
        running: list[Job] = []
        while True:
            if not running and not waiting:
                bell[0] = env.event()
                yield bell[0]
            room = MAX_NUM_BATCHED_TOKENS
            decodes = [job for job in running if job.done_prompt == job.prompt]
            room -= len(decodes)
            contexts = sum(job.prompt + job.made for job in decodes)
            chunks: list[tuple[Job, int]] = []
            for job in running:
                if job.done_prompt < job.prompt and room > 0:
                    chunks.append((job, min(room, job.prompt - job.done_prompt)))
                    room -= chunks[-1][1]
            while room > 0 and waiting and len(running) < MAX_NUM_SEQS:
                job = waiting.pop(0)
                running.append(job)
                chunks.append((job, min(room, job.prompt)))
                room -= chunks[-1][1]
            contexts += sum(job.done_prompt + count for job, count in chunks)
            yield env.timeout(step_s(len(decodes), sum(c for _, c in chunks), contexts))
            for job, count in chunks:
                job.done_prompt += count
            finished = decodes + [job for job, _ in chunks if job.done_prompt == job.prompt]
            for job in finished:
                job.made += 1
                job.stamps.append(env.now)
                if job.made == job.output:
                    running.remove(job)

    env.process(source())
    env.process(worker())
    env.run(until=arrivals[-1].time_ns / 1e9 + 60)
    return jobs


@pytest.mark.parametrize("rate", [5.0, 14.0, 20.0])
def test_both_simulators_agree_request_by_request(rate: float) -> None:
    arrivals = poisson_arrivals(
        rate, 500, LengthDistribution(150, 0.4), LengthDistribution(60, 0.4), seed=4
    )
    ours = simulate(
        SimulatedServer(
            StepTimeModel((MEMORY, COMPUTE)), MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, 10**6
        ),
        arrivals,
        warm_up_share=0.0,
    )
    jobs = simpy_server(arrivals)
    ttft = np.array([job.stamps[0] - job.arrived for job in jobs])
    e2e = np.array([job.stamps[-1] - job.arrived for job in jobs])
    assert ours.ttft_s == pytest.approx(ttft, rel=1e-6, abs=1e-6)
    assert ours.e2e_s == pytest.approx(e2e, rel=1e-6, abs=1e-6)
    start, end = arrivals[0].time_ns / 1e9, arrivals[-1].time_ns / 1e9
    gaps = [
        gap
        for job in jobs
        for gap, stamp in zip(np.diff(job.stamps), job.stamps[1:], strict=True)
        if start <= stamp <= end
    ]
    assert ours.gap_counts.sum() == len(gaps)
    for quantile in (0.5, 0.9, 0.99):
        assert ours.itl_quantile_s(quantile) == pytest.approx(
            float(np.quantile(gaps, quantile)), rel=0.01
        )
