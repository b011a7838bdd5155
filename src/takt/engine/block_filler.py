"""Writes block tables and slots of a step, from the KV manager's own arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from takt.engine.step_buffer import StepBuffer
from takt.errors import InvariantError
from takt.kvcache.block_tables import NO_BLOCK
from takt.scheduler.request import Request


class BlockTables(Protocol):
    """What a step reads of the KV manager; sequences are named by their requests."""

    @property
    def tables(self) -> npt.NDArray[np.int32]:
        """All tables, `[num_kv_groups, num_rows, blocks]`, until one is made or grows."""
        ...

    def rows(self, seqs: Sequence[Request]) -> npt.NDArray[np.int64]:
        """Row of each sequence among the tables, `[num_seqs]`."""
        ...

    def write_block_tables(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
        """Fills `out[:, :len(rows)]`, `[num_kv_groups, num_seqs, width]`, padded with -1."""
        ...

    def write_slots(
        self,
        token_rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        out: npt.NDArray[np.int64],
    ) -> None:
        """Fills `out[:, :num_tokens]`; `token_rows` is the row of each token's sequence."""
        ...


class BlockFiller:
    def __init__(self, tables: BlockTables, block_size: int) -> None:
        self._tables = tables
        self.block_size = block_size

    @property
    def tables(self) -> npt.NDArray[np.int32]:
        return self._tables.tables

    def rows(self, seqs: Sequence[Request]) -> npt.NDArray[np.int64]:
        return self._tables.rows(seqs)

    def fill(
        self,
        buffer: StepBuffer,
        table_rows: npt.NDArray[np.int64],
        token_rows: npt.NDArray[np.int64],
        longest: int,
    ) -> None:
        """Blocks of sequences of up to `longest` tokens, slots of the tokens at `positions`."""
        views, num_tokens = buffer.step.views, len(token_rows)
        tables = views["block_tables"]
        width = self.widen(buffer, longest)
        self._tables.write_block_tables(table_rows, tables[:, :, :width])
        slots = views["slot_mapping"]
        self._tables.write_slots(token_rows, views["positions"][:num_tokens], slots)
        if slots[:, :num_tokens].min() < 0:
            raise InvariantError("a scheduled token has no KV block")

    def widen(self, buffer: StepBuffer, longest: int) -> int:
        """Has the buffer's tables reach as far as sequences of up to `longest` tokens need, and
        returns how many blocks that is. Columns beyond stay as they are, all padding."""
        width = -(-longest // self.block_size)
        if width < buffer.table_width:
            buffer.step.views["block_tables"][:, :, width : buffer.table_width] = NO_BLOCK
        buffer.table_width = width
        return width
