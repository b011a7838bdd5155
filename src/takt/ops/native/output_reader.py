"""What every step's output is asked for, in one call."""

from __future__ import annotations

from takt import _native
from takt.types.step import StepLimits, StepOutput, output_layout


class NativeOutputReader:
    """Reads outputs of steps; slices of arrays would cost several times as much."""

    def __init__(self, limits: StepLimits) -> None:
        offsets = output_layout(limits).offsets()
        self._header, self._token_ids = offsets["header"], offsets["token_ids"]
        self._max_num_rows = limits.max_num_rows

    def read(self, output: StepOutput, num_rows: int) -> tuple[int, int, int, int, int, list[int]]:
        """step_id, num_redone_tiles, stolen_run_ns, stolen_host_ns and computed_ns of the header,
        and the token of each of the first `num_rows` rows."""
        address, num_rows = output.address, min(num_rows, self._max_num_rows)
        return _native.read_output(address + self._header, address + self._token_ids, num_rows)
