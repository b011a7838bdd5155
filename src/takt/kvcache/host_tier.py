"""Host memory for blocks that few ask for: a second place for prefixes, behind the pool's own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from takt.kvcache.block_copy import BlockCopy
from takt.kvcache.block_pool import BlockPool
from takt.kvcache.prefix import BlockKey

MAX_HOST_COPIES = 256
"""Blocks that one step copies from and to host memory: a step must not become long by it."""


class _Place(NamedTuple):
    block: int
    key: BlockKey


class HostTier:
    """Which prefixes host memory holds, the least recently used forgotten first.

    Its blocks are numbered behind those of the pool of their KV group, so that a copy from one to
    the other is an ordinary block copy of a step, made before anything else in it and in order.
    Only metadata is here.
    """

    def __init__(self, first_blocks: Sequence[int], num_blocks: Sequence[int]) -> None:
        """By KV group: the number of the first block, and how many there are."""
        self._unused = [
            list(range(first + count - 1, first - 1, -1))
            for first, count in zip(first_blocks, num_blocks, strict=True)
        ]
        self._held: list[OrderedDict[bytes, _Place]] = [OrderedDict() for _ in num_blocks]
        self._num_copies = 0
        """That the next step makes."""
        self.num_offloaded_blocks = 0
        """Blocks copied to host memory so far; and from there."""
        self.num_restored_blocks = 0

    def offload_cold(
        self, pools: Sequence[BlockPool], hot_share: float, copies: list[BlockCopy]
    ) -> None:
        """Adds copies of the pools' unused prefixes, but for the share that was used last."""
        for group, pool in enumerate(pools):
            for block, key in pool.cold_blocks(hot_share):
                if self._num_copies == MAX_HOST_COPIES:
                    return
                place = self.place(group, key)
                if place is not None:
                    self._num_copies += 1
                    self.num_offloaded_blocks += 1
                    copies.append(BlockCopy(group, block, place))

    def restore(
        self,
        group: int,
        pool: BlockPool,
        keys: Sequence[BlockKey],
        has_gaps: bool,
        copies: list[BlockCopy],
    ) -> None:
        """Adds copies of a prefix's blocks that the pool lacks, into its least recently used ones.

        What the pool has of the prefix is kept. `has_gaps` goes on behind blocks that nobody has.
        """
        held = []
        for key in keys:
            block = pool.lookup(key)
            if block is not None:
                pool.share(block)
            elif (block := self._restore_block(group, pool, key, copies)) is None:
                if has_gaps:
                    continue
                break
            held.append(block)
        # The end of a prefix is the first to go again.
        for block in reversed(held):
            pool.release(block)

    def end_step(self) -> None:
        """A step takes the copies that were added."""
        self._num_copies = 0

    def _restore_block(
        self, group: int, pool: BlockPool, key: BlockKey, copies: list[BlockCopy]
    ) -> int | None:
        place = self.find(group, key)
        if place is None or not pool.num_free or self._num_copies == MAX_HOST_COPIES:
            return None
        block = pool.allocate()
        pool.publish(block, key)
        self._num_copies += 1
        self.num_restored_blocks += 1
        copies.append(BlockCopy(group, place, block))
        return block

    def find(self, group: int, key: BlockKey) -> int | None:
        """The block with exactly this content, or None."""
        place = self._held[group].get(key.digest)
        if place is None or place.key != key:
            return None
        self._held[group].move_to_end(key.digest)
        return place.block

    def place(self, group: int, key: BlockKey) -> int | None:
        """A block for this content, which is to be copied there; None if it is held already, or if
        the group has no host memory."""
        held, unused = self._held[group], self._unused[group]
        if key.digest in held:
            held.move_to_end(key.digest)
            return None
        if unused:
            block = unused.pop()
        elif held:
            block = held.popitem(last=False)[1].block
        else:
            return None
        held[key.digest] = _Place(block, key)
        return block

    def num_held(self, group: int) -> int:
        return len(self._held[group])
