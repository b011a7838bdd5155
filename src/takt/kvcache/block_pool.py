"""The blocks of one KV group: who uses them, and which hold a known prefix."""

from __future__ import annotations

import math

from takt.errors import InvariantError
from takt.kvcache.free_queue import FreeQueue
from takt.kvcache.prefix import BlockKey


class BlockPool:
    """Reference counts, the free queue and the prefix map of `num_blocks` blocks.

    A block is used (reference count above 0) or queued as free. A free block may still hold a
    published prefix: it can be shared again until it is handed out for something else. The queue
    gives out blocks without content first, then the least recently used prefix. Only metadata is
    ever touched: blocks are not zeroed, and the pool is never resized.
    """

    __slots__ = ("_cached", "_free", "_keys", "num_blocks", "ref_counts")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.reset()

    def reset(self) -> None:
        """Makes every block free and forgets every prefix."""
        self.ref_counts = [0] * self.num_blocks
        self._free = FreeQueue(self.num_blocks)
        self._keys: list[BlockKey | None] = [None] * self.num_blocks
        self._cached: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return self._free.size

    @property
    def num_used(self) -> int:
        return self.num_blocks - self._free.size

    @property
    def num_cached(self) -> int:
        """Blocks that hold a published prefix, used or free."""
        return len(self._cached)

    def allocate(self) -> int:
        """Hands out a free block with one reference; evicts the prefix it held."""
        if not self._free.size:
            raise InvariantError(f"all {self.num_blocks} blocks of the pool are in use")
        block = self._free.pop_front()
        self._evict(block)
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Adds a reference to a used block, or takes a published one back from the free queue."""
        if self.ref_counts[block] == 0:
            self._free.remove(block)
        self.ref_counts[block] += 1

    def release(self, block: int) -> None:
        """Drops a reference; with the last one the block becomes free."""
        references = self.ref_counts[block] - 1
        if references < 0:
            raise InvariantError(f"block {block} was released more often than it was handed out")
        self.ref_counts[block] = references
        if references == 0:
            if self._keys[block] is None:
                self._free.push_front(block)
            else:
                self._free.push_back(block)

    def publish(self, block: int, key: BlockKey) -> None:
        """Makes a full, computed block found by its content; the first of equal blocks counts."""
        if key.digest not in self._cached and self._keys[block] is None:
            self._cached[key.digest] = block
            self._keys[block] = key

    def lookup(self, key: BlockKey) -> int | None:
        """The block with exactly this content, or None."""
        block = self._cached.get(key.digest)
        if block is None:
            return None
        found = self._keys[block]
        if found is key or found == key:
            return block
        return None

    def cold_blocks(self, hot_share: float) -> list[tuple[int, BlockKey]]:
        """Prefixes that nobody uses, but for the share used last: the least recently used first."""
        unused = [(b, key) for b in self._free.ids() if (key := self._keys[b]) is not None]
        return unused[: len(unused) - math.ceil(hot_share * len(unused))]

    def forget_unused(self) -> int:
        """Evicts every prefix that nobody uses; returns their number."""
        unused = [block for block in self._cached.values() if self.ref_counts[block] == 0]
        for block in unused:
            self._evict(block)
            self._free.remove(block)
            self._free.push_front(block)
        return len(unused)

    def free_ids(self) -> list[int]:
        """Free blocks, the next to be handed out first."""
        return self._free.ids()

    def _evict(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            del self._cached[key.digest]
            self._keys[block] = None
