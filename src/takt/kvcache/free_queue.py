"""Free blocks in the order in which they will be handed out."""

from __future__ import annotations


class FreeQueue:
    """A queue of block ids threaded through two arrays, so that every verb is O(1).

    The front is handed out first. No verb allocates: the arrays are made once, and index
    `num_blocks` is a sentinel that closes the ring. Membership is the caller's to know.
    """

    __slots__ = ("_next", "_previous", "_sentinel", "size")

    def __init__(self, num_blocks: int) -> None:
        self._sentinel = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self.size = num_blocks
        """Blocks in the queue."""

    def pop_front(self) -> int:
        """Takes the block at the front; the queue must not be empty."""
        block = self._next[self._sentinel]
        self.remove(block)
        return block

    def push_front(self, block: int) -> None:
        self._link(block, self._sentinel, self._next[self._sentinel])

    def push_back(self, block: int) -> None:
        self._link(block, self._previous[self._sentinel], self._sentinel)

    def remove(self, block: int) -> None:
        """Takes a block out of wherever it stands; it must be queued."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.size -= 1

    def ids(self) -> list[int]:
        """All blocks, front first."""
        found: list[int] = []
        block = self._next[self._sentinel]
        while block != self._sentinel:
            found.append(block)
            block = self._next[block]
        return found

    def _link(self, block: int, before: int, after: int) -> None:
        self._next[before] = block
        self._previous[block] = before
        self._next[block] = after
        self._previous[after] = block
        self.size += 1
