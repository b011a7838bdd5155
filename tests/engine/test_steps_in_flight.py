"""How many steps an engine core has in flight, and that it changes no token."""

from __future__ import annotations

import itertools
from dataclasses import replace

from core_checks import check_all, check_nothing_is_kept, random_requests
from core_driver import engine_config, make_core, request, run_all
from fake_model import (
    WINDOW,
    LazyExecutor,
    fake_model,
)

from takt.clock import MonotonicClock
from takt.config import ParallelOptions
from takt.engine.build import build_core
from takt.engine.executor import Executor


def test_steps_run_ahead_of_their_results() -> None:
    executors: list[Executor] = []
    model = fake_model(max_steps_in_flight=2, on_executor=executors.append)
    run_all(make_core(model), [request("a", [1, 2, 3], max_tokens=10)])
    (executor,) = executors
    assert isinstance(executor, LazyExecutor)
    assert executor.most_in_flight == 2


def test_no_step_runs_ahead_of_a_penalty() -> None:
    executors: list[Executor] = []
    model = fake_model(max_steps_in_flight=2, on_executor=executors.append)
    requests = [request("a", [1, 2, 3], max_tokens=10, presence_penalty=1.0)]
    check_all(run_all(make_core(model), requests), requests)
    (executor,) = executors
    assert isinstance(executor, LazyExecutor)
    assert executor.most_in_flight == 1


def test_a_pipelines_depth_follows_the_load_and_changes_no_token() -> None:
    executors: list[Executor] = []
    model = replace(
        fake_model(window=WINDOW, max_steps_in_flight=4, on_executor=executors.append),
        num_micro_batches=4,
        first_depth=2,
    )
    requests = random_requests(3, 64)
    penalised = [
        request(f"p{i}", [i, 2, 3], max_tokens=40, presence_penalty=1.0, ignore_eos=True)
        for i in range(8)
    ]
    core = make_core(model)
    collector = run_all(core, [*requests, *penalised])
    check_all(collector, [*requests, *penalised], WINDOW)
    check_nothing_is_kept(core)
    depths = [stats.pipeline_depth for stats in collector.stats]
    assert depths[0] == 2
    assert len(set(depths)) > 1 and set(depths) <= {1, 2, 3, 4}
    assert all(abs(b - a) <= 1 for a, b in itertools.pairwise(depths))
    (executor,) = executors
    assert isinstance(executor, LazyExecutor)
    assert 1 < executor.most_in_flight <= max(depths)


def test_a_given_depth_stays() -> None:
    model = replace(fake_model(max_steps_in_flight=3), num_micro_batches=3)
    config = engine_config()
    config = replace(config, parallel=ParallelOptions(pipeline_parallel_size=2, pipeline_depth="3"))
    core = build_core(config, model, MonotonicClock())
    requests = random_requests(3, 64)
    collector = run_all(core, requests)
    check_all(collector, requests)
    assert {stats.pipeline_depth for stats in collector.stats} == {3}
