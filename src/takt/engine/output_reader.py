"""What every step's output is asked for, with the native module or without it."""

from __future__ import annotations

from typing import Protocol

from takt.types.step import StepLimits, StepOutput


class OutputReader(Protocol):
    def read(self, output: StepOutput, num_rows: int) -> tuple[int, int, int, int, int, list[int]]:
        """step_id, num_redone_tiles, stolen_run_ns, stolen_host_ns and computed_ns of the header,
        and the token of each of the first `num_rows` rows."""
        ...


def create_output_reader(limits: StepLimits, *, native: bool) -> OutputReader:
    """`native` is the faster one; it needs the native module."""
    if not native:
        return ViewsReader()
    from takt.ops.native.output_reader import NativeOutputReader

    return NativeOutputReader(limits)


class ViewsReader:
    """Reads the arrays themselves."""

    def read(self, output: StepOutput, num_rows: int) -> tuple[int, int, int, int, int, list[int]]:
        views = output.views
        step_id, _, _, _, *counts = views["header"].tolist()
        num_redone_tiles, stolen_run_ns, stolen_host_ns, computed_ns = counts
        token_ids: list[int] = views["token_ids"][:num_rows].tolist()
        return step_id, num_redone_tiles, stolen_run_ns, stolen_host_ns, computed_ns, token_ids
