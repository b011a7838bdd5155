"""The input of a step that does what the one before did, one token further."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from takt import _native
from takt.errors import InvariantError
from takt.types.step import StepInput, StepLimits, StepOutput, input_layout, output_layout


class DecodeStep:
    """Writes a step of decodes over the one before in its own buffers, in one call.

    It takes the place of a dozen small array operations, each of which runs through code of its
    own that the kernels have pushed out of the caches.
    """

    def __init__(self, limits: StepLimits, block_size: int) -> None:
        self._step = _native.DecodeStep(
            dataclasses.asdict(limits),
            block_size,
            input_layout(limits).offsets(),
            output_layout(limits).offsets(),
        )

    def advance(self, step: StepInput, output: StepOutput, step_id: int, num_seqs: int) -> None:
        """`output` is of the step that `step` holds. Slots are right within a block."""
        self._step.advance(step.address, output.address, step_id, num_seqs)

    def write_blocks(
        self,
        step: StepInput,
        tables: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int64],
        width: int,
    ) -> None:
        """Writes the first `width` blocks of each sequence, and the slots of its token.

        `tables` is `[num_kv_groups, num_rows, >= width]`; sequence i has row `rows[i]`.
        """
        if not self._step.write_blocks(step.address, tables, rows, width):
            raise InvariantError("a scheduled token has no KV block")
