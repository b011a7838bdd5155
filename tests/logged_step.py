"""Lines of a step log, made up."""

from typing import Any

from takt.observe.step_log import LoggedStep

MS = 1_000_000


def step(begin_ms: float, end_ms: float, **changes: Any) -> LoggedStep:
    values = dict.fromkeys(LoggedStep.__struct_fields__, 0)
    values |= {"schedule_start_ns": int(begin_ms * MS), "update_end_ns": int(end_ms * MS)}
    return LoggedStep(**(values | changes))
