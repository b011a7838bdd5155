"""Block tables as rows of one array, so that a step copies them in one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NO_BLOCK = -1
"""Padding of a block table, and the entry of a block that a sliding window has passed."""


class BlockTables:
    """int32 `[num_kv_groups, num_rows, max_blocks_per_seq]`; a sequence owns one row index.

    The array doubles where a sequence has no row or a row no room. Made for all sequences of the
    longest context, it grows only while sequences that ended wait for a step that still reads them.
    """

    def __init__(
        self, num_groups: int, num_rows: int, max_blocks_per_seq: int, block_size: int
    ) -> None:
        self._block_size = block_size
        self.ids = np.full((num_groups, num_rows, max_blocks_per_seq), NO_BLOCK, dtype=np.int32)
        self._free_rows = list(range(num_rows - 1, -1, -1))

    def acquire(self) -> int:
        """Takes a row of padding."""
        if not self._free_rows:
            _, num_rows, width = self.ids.shape
            self._resize(2 * num_rows, width)
            self._free_rows.extend(range(2 * num_rows - 1, num_rows - 1, -1))
        return self._free_rows.pop()

    def release(self, row: int, num_blocks: int) -> None:
        """Gives back a row of which at most `num_blocks` entries were written."""
        self.ids[:, row, :num_blocks] = NO_BLOCK
        self._free_rows.append(row)

    def write(self, group: int, row: int, first: int, blocks: Sequence[int]) -> None:
        end = first + len(blocks)
        _, num_rows, width = self.ids.shape
        if end > width:
            self._resize(num_rows, max(end, 2 * width))
        self.ids[group, row, first:end] = blocks

    def write_one(self, group: int, row: int, index: int, block: int) -> None:
        if index >= self.ids.shape[2]:
            self.write(group, row, index, (block,))
        else:
            self.ids[group, row, index] = block

    def clear(self, group: int, row: int, first: int, last: int) -> None:
        self.ids[group, row, first:last] = NO_BLOCK

    def copy_row(self, source: int, destination: int) -> None:
        self.ids[:, destination] = self.ids[:, source]

    def view(self, group: int, row: int, num_blocks: int) -> npt.NDArray[np.int32]:
        """int32 `[num_blocks]`, valid until the next change of any table."""
        return self.ids[group, row, :num_blocks]

    def gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
        """Copies rows into `out[:, :len(rows)]`, `[num_kv_groups, >= len(rows), width]`."""
        width = min(out.shape[2], self.ids.shape[2])
        for group in range(self.ids.shape[0]):
            out[group, : len(rows), :width] = self.ids[group, :, :width][rows]
            out[group, : len(rows), width:] = NO_BLOCK

    def slots(
        self,
        token_rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        out: npt.NDArray[np.int64],
    ) -> None:
        """Writes `block * block_size + offset` of each token into `out[:, :num_tokens]`."""
        index, offset = np.divmod(positions, self._block_size)
        for group in range(self.ids.shape[0]):
            blocks = self.ids[group][token_rows, index].astype(np.int64)
            out[group, : len(positions)] = blocks * self._block_size + offset

    def _resize(self, num_rows: int, width: int) -> None:
        old = self.ids
        groups, old_rows, old_width = old.shape
        self.ids = np.full((groups, num_rows, width), NO_BLOCK, dtype=np.int32)
        self.ids[:, :old_rows, :old_width] = old
