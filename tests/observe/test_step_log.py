"""The log of steps: written, read back, and ended by a full disk."""

from pathlib import Path

import pytest

from logged_step import step
from takt.errors import ConfigError
from takt.observe.step_log import StepLog, read_step_log


def test_steps_come_back_and_a_line_that_is_being_written_does_not(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path)
    steps = [step(i, i + 0.5, step_id=i, num_decode_seqs=i) for i in range(3)]
    for one in steps:
        log.add(one)
    log.close()
    assert read_step_log(path) == steps
    with path.open("ab") as file:
        file.write(b'{"step_id":3,"sched')
    assert read_step_log(path) == steps
    path.write_text("no step\n")
    with pytest.raises(ConfigError, match=r"steps\.jsonl:1"):
        read_step_log(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--step-log"):
        StepLog(tmp_path / "none" / "steps")


def test_a_full_disk_ends_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    log = StepLog(Path("/dev/full"))
    for i in range(3):
        log.add(step(1_000 * i, 1_000 * i + 1))
    log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "--step-log /dev/full ends here: No space left on device"
    ]
    StepLog(Path("/dev/full")).close()
