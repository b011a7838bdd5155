"""Block tables of sequences over the pools of all KV groups."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takt.errors import InvariantError
from takt.kvcache.block_copy import BlockCopy
from takt.kvcache.block_pool import BlockPool
from takt.kvcache.block_tables import NO_BLOCK, BlockTables
from takt.kvcache.host_tier import HostTier
from takt.kvcache.prefix import PrefixChain
from takt.kvcache.sizing import blocks_for_tokens
from takt.types.kv import KVCacheSpec


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Computed blocks that a new sequence can share: `blocks[g]` is its table in KV group g.

    Entries that a sliding window never reads are -1. Valid until the next change of the pool.
    """

    num_blocks: int
    num_tokens: int
    blocks: list[list[int]]


@dataclass(slots=True)
class _Sequence:
    row: int
    chain: PrefixChain | None
    tables: list[list[int]]
    first_held: list[int]
    """Per group, the first block that its window has not passed."""
    num_tokens: int = 0
    num_slots: int = 0
    """Tokens that fit without allocating or copying."""
    num_committed_blocks: int = 0
    shares_tail: bool = False
    """The partial last block may be shared: the next append copies it if it still is."""


class KVCacheManager:
    """Owns the pools and the block tables of sequences, each named by an opaque, hashable id.

    Every sequence has one table per KV group, all of equal length. `num_blocks[g]` is the size of
    the pool of group g; `num_host_blocks[g]` blocks of host memory are numbered behind it. Tables
    are made for `max_num_seqs` sequences of `max_model_len` tokens; without these they grow with
    what comes.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: Sequence[int],
        enable_prefix_caching: bool,
        *,
        max_num_seqs: int = 1,
        max_model_len: int = 1,
        num_host_blocks: Sequence[int] = (),
    ) -> None:
        if len(num_blocks) != len(spec.groups):
            raise InvariantError(f"{len(num_blocks)} pool sizes for {len(spec.groups)} KV groups")
        self.spec = spec
        self.block_size = spec.block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pools = [BlockPool(count) for count in num_blocks]
        self.num_total_blocks = sum(num_blocks)
        self.num_table_blocks = 0
        """Sum of the lengths of all sequences' tables (of one group; they are equally long)."""
        self.num_shared_tails = 0
        """Sequences whose next append may copy a block."""
        width = blocks_for_tokens(max_model_len, spec.block_size)
        self._tables = BlockTables(len(num_blocks), max_num_seqs, width, spec.block_size)
        self._sequences: dict[Hashable, _Sequence] = {}
        self._copies: list[BlockCopy] = []
        self.host = HostTier(num_blocks, num_host_blocks) if any(num_host_blocks) else None
        self._windowed = [g for g, group in enumerate(spec.groups) if group.window is not None]

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    @property
    def num_used_blocks(self) -> int:
        """Blocks with a reference, of all groups."""
        return self.usage()[0]

    def usage(self) -> tuple[int, float]:
        """Blocks with a reference, of all groups, and the share of its pool that the fullest group
        uses: where blocks run out first."""
        total, fullest = 0, 0.0
        for pool in self.pools:
            num_used = pool.num_used
            total += num_used
            share = num_used / pool.num_blocks
            if share > fullest:
                fullest = share
        return total, fullest

    def num_held_tokens(self, group: int) -> int:
        """Tokens with a slot in the group, summed over sequences; those in flight have one."""
        size = self.block_size
        return sum(
            state.num_tokens - state.first_held[group] * size for state in self._sequences.values()
        )

    # -- prefixes -----------------------------------------------------------------------------
    def prefix_chain(
        self, extra_keys: Sequence[str] = (), num_given: int | None = None
    ) -> PrefixChain | None:
        """A chain for a new sequence's block keys; None without prefix caching."""
        if not self.enable_prefix_caching:
            return None
        return PrefixChain(self.block_size, extra_keys, num_given=num_given)

    def lookup(self, chain: PrefixChain | None, token_ids: Sequence[int]) -> PrefixHit:
        """The longest computed prefix of `token_ids` that leaves at least one token to compute.

        That is at most floor((len(token_ids) - 1) / block_size) blocks. Full attention needs all
        of them, a sliding window only those that the next token still sees.
        """
        limit = (len(token_ids) - 1) // self.block_size if token_ids else 0
        empty: list[list[int]] = [[] for _ in self.pools]
        if chain is None or limit == 0:
            return PrefixHit(0, 0, empty)
        chain.extend(token_ids, limit)
        found: list[list[int]] = []
        for group, pool in zip(self.spec.groups, self.pools, strict=True):
            table: list[int] = []
            for key in chain.keys[:limit]:
                block = pool.lookup(key)
                if block is None and group.window is None:
                    break
                table.append(NO_BLOCK if block is None else block)
            limit = min(limit, len(table))
            found.append(table)
        length = self._longest_hit(found, limit)
        for g, table in enumerate(found):
            first = self._first_seen_block(g, length * self.block_size)
            found[g] = [NO_BLOCK] * min(first, length) + table[first:length]
        return PrefixHit(length, length * self.block_size, found)

    def forget_prefixes(self) -> int:
        """Evicts every cached prefix that no sequence uses; returns the number of blocks."""
        return sum(pool.forget_unused() for pool in self.pools)

    def offload_cold(self, hot_share: float) -> None:
        """Has the next step copy unused prefixes to host memory, but for the share used last.

        The pool's blocks go on holding what they hold until they are handed out for something else.
        """
        if self.host is not None:
            self.host.offload_cold(self.pools, hot_share, self._copies)

    def restore(self, chain: PrefixChain | None, token_ids: Sequence[int]) -> bool:
        """Brings blocks of a prefix back from host memory; whether there were any. `lookup` finds
        them then, and the next step makes the copies."""
        num_blocks = (len(token_ids) - 1) // self.block_size
        if self.host is None or chain is None or num_blocks < 1:
            return False
        chain.extend(token_ids, num_blocks)
        num_before = self.host.num_restored_blocks
        for g, (pool, group) in enumerate(zip(self.pools, self.spec.groups, strict=True)):
            has_gaps = group.window is not None
            self.host.restore(g, pool, chain.keys[:num_blocks], has_gaps, self._copies)
        return self.host.num_restored_blocks > num_before

    # -- sequences ----------------------------------------------------------------------------
    def create(
        self, seq: Hashable, chain: PrefixChain | None = None, hit: PrefixHit | None = None
    ) -> None:
        """Makes a sequence whose first `hit.num_tokens` tokens are the shared prefix."""
        if seq in self._sequences:
            raise InvariantError("a sequence was created twice")
        tables = [list(blocks) for blocks in hit.blocks] if hit else [[] for _ in self.pools]
        state = _Sequence(self._tables.acquire(), chain, tables, [0] * len(self.pools))
        self._sequences[seq] = state
        if hit is None or hit.num_blocks == 0:
            return
        for g, table in enumerate(tables):
            first = self._first_seen_block(g, hit.num_tokens)
            state.first_held[g] = min(first, hit.num_blocks)
            for block in table[first:]:
                self.pools[g].share(block)
            self._tables.write(g, state.row, 0, table)
        state.num_tokens = state.num_slots = hit.num_tokens
        state.num_committed_blocks = hit.num_blocks
        self.num_table_blocks += hit.num_blocks

    def has(self, seq: Hashable) -> bool:
        return seq in self._sequences

    def num_new_blocks(self, seq: Hashable, num_tokens: int) -> int:
        """Blocks by which `append` would lengthen each table of the sequence; copies aside."""
        needed = blocks_for_tokens(num_tokens, self.block_size)
        return max(0, needed - len(self._sequences[seq].tables[0]))

    def can_append(self, seq: Hashable, num_tokens: int) -> bool:
        """Whether every pool has the blocks that `append` would take, copies included."""
        state = self._sequences[seq]
        needed = self.num_new_blocks(seq, num_tokens)
        for pool, table in zip(self.pools, state.tables, strict=True):
            copies = state.shares_tail and pool.ref_counts[table[-1]] > 1
            if needed + copies > pool.num_free:
                return False
        return True

    def append(self, seq: Hashable, num_tokens: int) -> int:
        """Makes slots for the tokens of a sequence up to `num_tokens`, those it has included.

        Returns how many tokens now have a slot: until then there is no need to call again, unless
        the sequence is forked. Needs `can_append`. The first append to a shared partial block
        leaves the block to the others and adds a copy to `take_copies`.
        """
        state = self._sequences[seq]
        if num_tokens > state.num_slots:
            self._grow(state, num_tokens)
        state.num_tokens = num_tokens
        return state.num_slots

    def fork(self, parent: Hashable, child: Hashable, chain: PrefixChain | None = None) -> None:
        """Makes `child` a copy of `parent` that shares all blocks, a partial last one included.

        `chain` is the child's own, such as a fork of the parent's. Both have the tokens of the
        parent's last `append`.
        """
        source = self._sequences[parent]
        self.create(child, chain)
        state = self._sequences[child]
        state.tables = [table.copy() for table in source.tables]
        state.first_held = source.first_held.copy()
        state.num_tokens = source.num_tokens
        state.num_committed_blocks = source.num_committed_blocks
        for pool, table, first in zip(self.pools, state.tables, state.first_held, strict=True):
            for block in table[first:]:
                pool.share(block)
        self._tables.copy_row(source.row, state.row)
        self.num_table_blocks += len(state.tables[0])
        state.num_slots = source.num_slots
        if source.num_tokens % self.block_size:
            for sharer in (source, state):
                self.num_shared_tails += not sharer.shares_tail
                sharer.shares_tail = True
                sharer.num_slots = sharer.num_tokens

    def commit(self, seq: Hashable, token_ids: Sequence[int], num_tokens: int) -> None:
        """Says that the first `num_tokens` tokens, whose ids are given, are computed.

        Publishes the blocks that became full and lets go of those that a window has passed.
        """
        state = self._sequences[seq]
        first, last = state.num_committed_blocks, num_tokens // self.block_size
        if last <= first:
            return
        state.num_committed_blocks = last
        if state.chain is not None:
            state.chain.extend(token_ids, last)
            keys = state.chain.keys
            for pool, table in zip(self.pools, state.tables, strict=True):
                for index in range(first, last):
                    if table[index] != NO_BLOCK:
                        pool.publish(table[index], keys[index])
        for g in self._windowed:
            self._pass_window(state, g, self._first_seen_block(g, num_tokens))

    def free(self, seq: Hashable) -> None:
        """Ends a sequence; its last block is the first to be evicted."""
        state = self._sequences.pop(seq)
        for pool, table, first in zip(self.pools, state.tables, state.first_held, strict=True):
            for block in reversed(table[first:]):
                pool.release(block)
        self.num_table_blocks -= len(state.tables[0])
        self.num_shared_tails -= state.shares_tail
        self._tables.release(state.row, len(state.tables[0]))

    def take_copies(self) -> list[BlockCopy]:
        """Copies that appends since the last call asked for; the next step must make them."""
        copies, self._copies = self._copies, []
        if self.host is not None:
            self.host.end_step()
        return copies

    # -- what a step reads --------------------------------------------------------------------
    def block_table(self, seq: Hashable, group: int) -> npt.NDArray[np.int32]:
        """A view, int32 `[blocks of the sequence]`, valid until the next change of any table."""
        state = self._sequences[seq]
        return self._tables.view(group, state.row, len(state.tables[group]))

    def rows(self, seqs: Sequence[Hashable]) -> npt.NDArray[np.int64]:
        """Row of each sequence in the array of tables, for the two calls below."""
        sequences = self._sequences
        return np.array([sequences[seq].row for seq in seqs], dtype=np.int64)

    @property
    def tables(self) -> npt.NDArray[np.int32]:
        """All block tables, `[num_kv_groups, num_rows, blocks]`, until one is made or grows."""
        return self._tables.ids

    def write_block_tables(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
        """Copies tables into `out[:, :len(rows)]`, a step's `block_tables`, padded with -1."""
        self._tables.gather(rows, out)

    def write_slots(
        self,
        token_rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        out: npt.NDArray[np.int64],
    ) -> None:
        """Fills `out[:, :num_tokens]`, a step's `slot_mapping`.

        `token_rows` is the row of each token's sequence, `[num_tokens]`; positions likewise.
        """
        self._tables.slots(token_rows, positions, out)

    # -- internals ----------------------------------------------------------------------------
    def _grow(self, state: _Sequence, end: int) -> None:
        if state.shares_tail:
            self._unshare_tail(state)
        first = len(state.tables[0])
        count = blocks_for_tokens(end, self.block_size) - first
        if count > 0:
            for g, pool in enumerate(self.pools):
                if count == 1:  # what a decode needs, now and then
                    block = pool.allocate()
                    state.tables[g].append(block)
                    self._tables.write_one(g, state.row, first, block)
                else:
                    blocks = [pool.allocate() for _ in range(count)]
                    state.tables[g].extend(blocks)
                    self._tables.write(g, state.row, first, blocks)
            self.num_table_blocks += count
        state.num_slots = len(state.tables[0]) * self.block_size

    def _unshare_tail(self, state: _Sequence) -> None:
        for g, pool in enumerate(self.pools):
            table = state.tables[g]
            shared = table[-1]
            if pool.ref_counts[shared] > 1:
                own = pool.allocate()
                pool.release(shared)
                table[-1] = own
                self._tables.write(g, state.row, len(table) - 1, (own,))
                self._copies.append(BlockCopy(g, shared, own))
        state.shares_tail = False
        self.num_shared_tails -= 1

    def _pass_window(self, state: _Sequence, group: int, first_seen: int) -> None:
        first = state.first_held[group]
        if first_seen <= first:
            return
        table, pool = state.tables[group], self.pools[group]
        for index in range(first, first_seen):
            pool.release(table[index])
            table[index] = NO_BLOCK
        self._tables.clear(group, state.row, first, first_seen)
        state.first_held[group] = first_seen

    def _first_seen_block(self, group: int, num_tokens: int) -> int:
        """First block that the token at position `num_tokens` still reads."""
        window = self.spec.groups[group].window
        return 0 if window is None else max(0, num_tokens - window + 1) // self.block_size

    def _longest_hit(self, found: list[list[int]], limit: int) -> int:
        """Longest length, in blocks, whose visible blocks every group has."""
        if all(group.window is None for group in self.spec.groups):
            return limit
        longest = 0
        runs = [0] * len(found)  # computed blocks in a row, ending just before `length`
        for length in range(1, limit + 1):
            num_tokens = length * self.block_size
            complete = True
            for g, table in enumerate(found):
                runs[g] = 0 if table[length - 1] == NO_BLOCK else runs[g] + 1
                first = min(self._first_seen_block(g, num_tokens), length)
                complete = complete and runs[g] >= length - first
            if complete:
                longest = length
        return longest
