"""A KV cache that remembers what was written where, to check what a sequence would read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from takt.kvcache.manager import KVCacheManager
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec

FULL = (None,)


def kv_spec(windows: Sequence[int | None] = FULL, block_size: int = 4) -> KVCacheSpec:
    """One layer for each group; None is full attention."""
    groups = tuple(KVGroupSpec((layer,), window) for layer, window in enumerate(windows))
    return KVCacheSpec(groups, num_kv_heads=1, head_dim=8, block_size=block_size, dtype=KVDtype.F32)


class KVMemory:
    """What each slot of each group holds: the text up to and including its token."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._slots: list[dict[int, object]] = [{} for _ in kv.pools]

    def copy_blocks(self, copies: Iterable[tuple[int, int, int]]) -> None:
        size = self._kv.block_size
        for group, source, destination in copies:
            slots = self._slots[group]
            for offset in range(size):
                slots[destination * size + offset] = slots.get(source * size + offset)

    def write(self, seq: Hashable, salt: str, tokens: Sequence[int], start: int) -> set[tuple]:
        """Writes the tokens from `start` on; returns the blocks (group, id) that were written."""
        size = self._kv.block_size
        written = set()
        for group, slots in enumerate(self._slots):
            table = self._kv.block_table(seq, group)
            for position in range(start, len(tokens)):
                block = int(table[position // size])
                assert block >= 0, f"token {position} has no block in group {group}"
                slots[block * size + position % size] = (salt, tuple(tokens[: position + 1]))
                written.add((group, block))
        return written

    def check(self, seq: Hashable, salt: str, tokens: Sequence[int], start: int) -> None:
        """The last of `tokens` from `start` on must see exactly its own text in every group."""
        size = self._kv.block_size
        for group, slots in enumerate(self._slots):
            window = self._kv.spec.groups[group].window
            first = 0 if window is None else max(0, start - window + 1)
            table = self._kv.block_table(seq, group)
            for position in range(first, len(tokens)):
                held = slots[int(table[position // size]) * size + position % size]
                assert held == (salt, tuple(tokens[: position + 1])), (group, position)


def check_conservation(kv: KVCacheManager) -> None:
    """References equal table entries, free and used blocks are all blocks, caches are sound."""
    for group, pool in enumerate(kv.pools):
        references = [0] * pool.num_blocks
        for state in kv._sequences.values():
            for block in state.tables[group]:
                if block >= 0:
                    references[block] += 1
            held = kv._tables.view(group, state.row, len(state.tables[group]))
            assert held.tolist() == state.tables[group]
        assert references == pool.ref_counts
        free = pool.free_ids()
        assert len(free) == len(set(free)) == pool.num_free
        assert set(free) == {block for block, count in enumerate(references) if count == 0}
        assert pool.num_free + pool.num_used == pool.num_blocks
        for digest, block in pool._cached.items():
            key = pool._keys[block]
            assert key is not None
            assert key.digest == digest
        assert pool.num_cached == sum(key is not None for key in pool._keys)
    sequences = kv._sequences.values()
    assert kv.num_table_blocks == sum(len(state.tables[0]) for state in sequences)
    assert kv.num_shared_tails == sum(state.shares_tail for state in sequences)
