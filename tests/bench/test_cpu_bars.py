"""The arithmetic of the benchmarks; what they time is not tested."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bench_records import MS, make_record
from takt.bench.bench import BenchResult
from takt.bench.goodput import Targets
from takt.bench.load import LoadRun
from takt.bench.options import BenchOptions
from takt.bench.results import make_setting
from takt.bench.summary import summarize

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.cpu.bar import Figure, Verdict  # noqa: E402
from benchmarks.cpu.bars.between_runs import between  # noqa: E402
from benchmarks.cpu.client import decode_gaps_ms  # noqa: E402
from benchmarks.peers.engine import Timeline  # noqa: E402
from benchmarks.peers.worker_io import run  # noqa: E402
from benchmarks.peers.workload import Prompts, score  # noqa: E402
from benchmarks.percentile import percentile  # noqa: E402


def test_verdicts_of_ceilings_and_floors() -> None:
    def verdict(value: float, *, is_floor: bool = False) -> Verdict:
        bar, goal = (1.6, 2.0) if is_floor else (1.35, 1.1)
        return Figure("f", value, "x", bar, goal, is_floor).verdict

    assert [verdict(v) for v in (1.1, 1.2, 1.35, 1.36)] == [
        Verdict.GOAL,
        Verdict.MET,
        Verdict.MET,
        Verdict.MISSED,
    ]
    assert [verdict(v, is_floor=True) for v in (2.0, 1.7, 1.6, 1.59)] == [
        Verdict.GOAL,
        Verdict.MET,
        Verdict.MET,
        Verdict.MISSED,
    ]
    assert Figure("f", 1.0, "x", 1.35).verdict is Verdict.MET


def test_gaps_beside_a_waiting_request_are_left_out() -> None:
    early = make_record([10, 20, 30, 40, 50], planned_ms=0)
    late = make_record([10, 30], planned_ms=25)  # waits from 25 to 35
    records = LoadRun([early, late], 1.0, 0.0, False)
    result = BenchResult(
        make_setting(BenchOptions(), "u", "m", "", True),
        summarize(records, Targets({}), has_exact_prompts=True),
        records,
    )
    # 20 to 30 and 30 to 40 overlap the wait; 10 to 20, 40 to 50 and the late one's 35 to 55 do not.
    assert sorted(decode_gaps_ms(result)) == [10, 10, 20]


def test_share_between_runs_takes_full_steps_in_a_row() -> None:
    starts = np.array([0, 100, 200, 300, 400]) * MS
    steps = {
        "schedule_start_ns": starts - 2 * MS,
        "run_start_ns": starts,
        "run_end_ns": starts + np.array([90, 50, 95, 95, 95]) * MS,
        "update_end_ns": starts + np.array([91, 51, 96, 96, 96]) * MS,
        "num_decode_seqs": np.array([8, 7, 8, 8, 8]),
        "num_prefill_tokens": np.array([0, 64, 0, 0, 0]),
    }
    share, idle_us, core_us = between(steps, 8)
    assert share == pytest.approx(0.05)
    assert idle_us == pytest.approx(5000)
    assert core_us == pytest.approx(3000)
    with pytest.raises(RuntimeError, match="32 streams"):
        between(steps, 32)


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile(np.arange(1.0, 101.0), 99) == 99


def timeline(start_ms: int, *stamps_ms: int, cached: int = 0) -> Timeline:
    return Timeline(start_ms * MS, np.array(stamps_ms, dtype=np.int64) * MS, cached)


def test_scores_of_the_parts() -> None:
    one = score("one_stream", [[timeline(0, 5, 7, 10)], [timeline(0, 5, 9, cached=200)]])
    assert (one["p50_ms"], one["p99_ms"], one["largest_gap_ms"]) == (3, 4, 4)
    assert one["hit_rate"] == 0.25
    assert score("prefill", [[timeline(0, 512), timeline(0, 256)]]) == {
        "tokens_per_s": pytest.approx(512 / 0.384)
    }
    # Two slices of 100 ms and 50 ms, with idle time between them that is nobody's.
    many = score(
        "many_streams",
        [[timeline(0, 40, 100), timeline(0, 50, 90)], [timeline(900, 920, 950)]],
    )
    assert many["total_tokens_per_s"] == pytest.approx((3 * 400 + 6) / 0.15)
    assert many["output_tokens_per_s"] == pytest.approx(6 / 0.15)


def test_prompts_are_new_each_time_and_repeat_with_the_seed() -> None:
    prompts = Prompts(1, 49_152)
    made = prompts.make(3, 50) + prompts.make(3, 50)
    assert len({tuple(prompt) for prompt in made}) == 6
    assert all(1000 <= token < 49_152 for prompt in made for token in prompt)
    assert Prompts(1, 49_152).make(3, 50) == made[:3]


class Stepper:
    """Gives each sequence a token a step, after one step for its prompt."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.most_running = 0

    def add(self, slot: int, prompt: list[int], num_output: int) -> None:
        assert slot not in self.left
        self.left[slot] = num_output + 1

    def step(self) -> tuple[list[int], list[int]]:
        self.most_running = max(self.most_running, len(self.left))
        for slot in self.left:
            self.left[slot] -= 1
        ended = [slot for slot, left in self.left.items() if left == 0]
        advanced = list(self.left)
        for slot in ended:
            del self.left[slot]
        return [s for s in advanced if s in ended or self.left[s] < 4], ended


def test_a_worker_runs_a_closed_loop() -> None:
    engine = Stepper()
    results = run(engine, [[1], [2], [3], [4], [5]], streams=2, num_output=4)
    assert engine.most_running == 2
    assert [len(result["stamps"]) for result in results] == [4] * 5
    assert all(result["start_ns"] <= result["stamps"][0] for result in results)
    assert results[2]["start_ns"] >= results[0]["stamps"][-1]
