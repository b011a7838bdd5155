"""The ring of step records."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from takt.observe.step_record import StepPart, StepRecord


@dataclass
class Step:
    step_id: int
    schedule_start_ns: int = 0
    run_start_ns: int = 10
    run_end_ns: int = 110
    update_end_ns: int = 115
    num_decode_seqs: int = 1
    num_prefill_tokens: int = 2
    num_kv_tokens_read: int = 3
    num_qk_pairs: int = 4


@pytest.mark.parametrize("num_added", [1, 3, 4, 5, 11])
def test_it_holds_the_last_steps_oldest_first(num_added: int) -> None:
    record = StepRecord(capacity=4)
    for step_id in range(num_added):
        record.add(Step(step_id))
    first = max(0, num_added - 4)
    assert record.column("step_id").tolist() == list(range(first, num_added))
    assert len(record) == num_added - first
    assert record.num_added == num_added


def test_parts_add_up_to_the_whole() -> None:
    record = StepRecord()
    record.add(Step(0))
    durations = {part: int(record.durations_ns(part)[0]) for part in StepPart}
    assert durations == {
        StepPart.SCHEDULE: 10,
        StepPart.RUN: 100,
        StepPart.UPDATE: 5,
        StepPart.TOTAL: 115,
    }


def test_percentiles_are_of_the_steps_held() -> None:
    record = StepRecord(capacity=101)
    for step_id in range(500):
        record.add(Step(step_id, run_start_ns=0, run_end_ns=step_id))
    assert record.percentiles_ns(StepPart.RUN, [0, 50, 99]) == [399.0, 449.0, 498.0]


def test_an_empty_record_has_no_percentiles() -> None:
    with pytest.raises(ValueError, match="without steps"):
        StepRecord().percentiles_ns(StepPart.RUN, [50])
