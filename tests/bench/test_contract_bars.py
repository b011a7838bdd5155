"""The arithmetic of the contract's benchmark: capacity, costs, and what is kept between starts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bench_records import MS, make_record
from takt.bench.record import RequestRecord

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.contract.capacity import FACTOR, RisingQueue, by_simulation, search  # noqa: E402
from benchmarks.contract.cost import total_s  # noqa: E402
from benchmarks.contract.mix import LONG, SHORT, Mix  # noqa: E402
from benchmarks.contract.parts import PARTS  # noqa: E402
from benchmarks.contract.results import Results  # noqa: E402
from benchmarks.contract.session import Session  # noqa: E402
from benchmarks.cpu.bar import BarResult, Figure, Verdict  # noqa: E402

SECONDS = 120.0


@pytest.mark.parametrize(("guess", "true"), [(1.0, 1.0), (1.0, 1.2), (1.0, 0.8)])
def test_the_highest_rate_that_holds_is_found_within_a_step(guess: float, true: float) -> None:
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= true

    found = search(holds, guess)
    assert found <= true < found * FACTOR * (1 + 1e-9)
    assert len(asked) <= 5


def test_a_simulated_capacity_is_where_queues_begin_to_rise() -> None:
    found = by_simulation(lambda mix: mix.rate_per_s > 1.7, scale=4)
    assert found == pytest.approx(1.7, rel=0.02)


def queue(growth: float, now_s: float) -> list[RequestRecord]:
    """A request a second whose wait is `growth` of the time since the start, as seen at `now_s`."""
    records = []
    for second in range(int(SECONDS)):
        first_ms = 200.0 + 1e3 * growth * second
        record = make_record([first_ms, first_ms + 10.0], planned_ms=1e3 * (second + 1))
        if second + first_ms / 1e3 > now_s:
            record.stamps = record.stamps[:0]
        records.append(record)
    return records


@pytest.mark.parametrize(
    ("growth", "now_s", "is_over"),
    [
        (0.0, 60.0, False),
        (0.0, 130.0, False),
        (0.02, 130.0, True),
        (1.0, 40.0, False),
        (1.0, 70.0, True),
        (0.02, 80.0, False),
    ],
)
def test_a_run_is_given_up_once_its_queue_has_risen(
    growth: float, now_s: float, is_over: bool
) -> None:
    assert RisingQueue(SECONDS)(queue(growth, now_s), now_s) is is_over


def test_nothing_that_was_sent_is_no_reason_to_give_up() -> None:
    assert not RisingQueue(SECONDS)([], 60.0)


def test_a_scaled_mix_has_shorter_requests_as_many_times_as_often() -> None:
    whole = Mix(1.0, 400.0, long_ttft_ms=9.0).arrivals()
    scaled = Mix(1.0, 100.0, long_ttft_ms=9.0, scale=4).arrivals()
    assert [a.time_ns // 4 for a in whole] == pytest.approx([a.time_ns for a in scaled], abs=4)
    lengths = {(a.num_prompt_tokens, a.num_output_tokens) for a in scaled}
    assert lengths == {(SHORT[0] // 4, SHORT[1] // 4), (LONG[0] // 4, LONG[1] // 4)}
    beginning = Mix(1.0, 60.0, long_ttft_ms=9.0).arrivals()
    assert beginning == [a for a in whole if a.time_ns < 60e9]


def test_all_parts_fit_into_three_quarters_of_an_hour_and_shared_runs_count_once() -> None:
    session = Session("m", is_quick=False)
    runs = {run.name: run for part in PARTS.values() for run in part.runs(session)}
    assert total_s(list(runs.values())) <= 45 * 60
    alone = {run.name for run in PARTS["prediction"].runs(session)}
    assert "pace at 70 %" in alone
    session.__dict__["mixed"] = object()
    assert "pace at 70 %" not in {run.name for run in PARTS["mixed"].runs(session)}


def test_parts_are_kept_for_the_same_setting_alone(tmp_path: Path) -> None:
    path, setting = tmp_path / "contract.json", {"commit": "a", "quick": False}
    result = BarResult([Figure("f", 2.0, "x", 1.3, is_floor=True)], {"d": 1.5}, ["a note"])
    Results(path, setting).add("mixed", "t", result, 1.7)
    Results(path, setting).add("goodput", "t", BarResult.not_measured("it failed"), None)
    again = Results(path, setting)
    assert again.read("mixed") == result
    assert again.read("mixed").figures[0].verdict is Verdict.MET  # type: ignore[union-attr]
    assert again.read("goodput") is None and again.read("overload") is None
    assert Results(path, setting | {"commit": "b"}).read("mixed") is None
    path.write_text("{")
    assert Results(path, setting).read("mixed") is None


def test_waits_are_those_of_clients() -> None:
    record = make_record([300.0, 320.0], planned_ms=1000.0)
    _, waits = RisingQueue(SECONDS)._waits([record], 100.0)
    assert np.allclose(waits, [300.0]) and record.planned_ns == 1000 * MS
