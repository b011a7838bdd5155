"""Block tables: slots, prefix hits, copy-on-write, windows."""

from __future__ import annotations

import numpy as np
import pytest

from kv_memory import check_conservation, kv_spec
from takt.errors import InvariantError
from takt.kvcache.manager import KVCacheManager
from takt.kvcache.prefix import PrefixChain

TOKENS = list(range(100, 200))


def manager(
    num_blocks: int = 32, windows: tuple[int | None, ...] = (None,), caching: bool = True
) -> KVCacheManager:
    return KVCacheManager(kv_spec(windows), [num_blocks] * len(windows), caching)


def compute(kv: KVCacheManager, seq: object, tokens: list[int], salt: str = "") -> int:
    """Creates a sequence, computes its tokens in one step; returns the tokens it shared."""
    chain = kv.prefix_chain((salt,))
    hit = kv.lookup(chain, tokens)
    kv.create(seq, chain, hit)
    kv.append(seq, len(tokens))
    kv.commit(seq, tokens, len(tokens))
    return hit.num_tokens


def test_pool_sizes_must_match_groups() -> None:
    with pytest.raises(InvariantError):
        KVCacheManager(kv_spec((None, 8)), [4], True)


def test_blocks_are_taken_as_tokens_come() -> None:
    kv = manager()
    kv.create("a")
    assert kv.append("a", 1) == 4
    assert len(kv.block_table("a", 0)) == 1
    assert kv.append("a", 4) == 4
    assert kv.append("a", 5) == 8
    assert kv.num_used_blocks == 2
    kv.free("a")
    assert kv.num_used_blocks == 0


def test_append_beyond_the_pool_is_seen_before() -> None:
    kv = manager(num_blocks=2)
    kv.create("a")
    assert kv.can_append("a", 8)
    assert not kv.can_append("a", 9)
    kv.append("a", 8)
    assert kv.can_append("a", 8)
    assert not kv.can_append("a", 9)


def test_sequence_is_created_once() -> None:
    kv = manager()
    kv.create("a")
    with pytest.raises(InvariantError):
        kv.create("a")


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8, 9, 12, 13])
def test_hit_leaves_a_token_to_compute(num_prompt: int) -> None:
    kv = manager()
    prompt = TOKENS[:num_prompt]
    assert compute(kv, "a", prompt) == 0
    assert compute(kv, "b", prompt) == (num_prompt - 1) // 4 * 4


def test_hit_shares_blocks_and_outlives_their_maker() -> None:
    kv = manager()
    compute(kv, "a", TOKENS[:9])
    compute(kv, "b", TOKENS[:9])
    shared = kv.block_table("a", 0)[:2].tolist()
    assert kv.block_table("b", 0)[:2].tolist() == shared
    assert kv.num_used_blocks == 4
    kv.free("a")
    assert kv.num_used_blocks == 3
    kv.free("b")
    assert kv.lookup(kv.prefix_chain(("",)), TOKENS[:9]).blocks == [shared]


def test_only_equal_prefixes_hit() -> None:
    kv = manager()
    compute(kv, "a", TOKENS[:12])
    other = [*TOKENS[:5], 1, *TOKENS[6:12]]
    assert compute(kv, "b", other) == 4
    assert compute(kv, "c", TOKENS[4:12]) == 0


def test_salts_do_not_share() -> None:
    kv = manager()
    compute(kv, "a", TOKENS[:9], salt="one")
    assert compute(kv, "b", TOKENS[:9], salt="two") == 0
    assert compute(kv, "c", TOKENS[:9], salt="one") == 8


def test_extra_keys_are_not_run_together() -> None:
    chains = [PrefixChain(4, keys) for keys in (("ab", "c"), ("a", "bc"), ("abc",), ())]
    for chain in chains:
        chain.extend(TOKENS[:4], 1)
    assert len({chain.keys[0].digest for chain in chains}) == 4


def test_colliding_digests_never_share_other_text() -> None:
    kv = manager(num_blocks=64)
    texts = [[first, *TOKENS[1:8], 0] for first in range(20)]
    for text in texts:
        chain = PrefixChain(4, (), digest=lambda data: bytes([sum(data) % 2]))
        hit = kv.lookup(chain, text)
        kv.create(text[0], chain, hit)
        kv.append(text[0], 9)
        kv.commit(text[0], text, 9)
        assert hit.num_blocks == 0
    check_conservation(kv)


def test_nothing_is_shared_before_it_is_computed() -> None:
    kv = manager()
    chain = kv.prefix_chain()
    kv.create("a", chain)
    kv.append("a", 9)
    assert kv.lookup(kv.prefix_chain(), TOKENS[:9]).num_blocks == 0
    kv.commit("a", TOKENS[:9], 7)
    assert kv.lookup(kv.prefix_chain(), TOKENS[:9]).num_blocks == 1


def test_no_caching_no_hits() -> None:
    kv = manager(caching=False)
    compute(kv, "a", TOKENS[:9])
    assert compute(kv, "b", TOKENS[:9]) == 0


def test_forgotten_prefixes_miss() -> None:
    kv = manager()
    compute(kv, "a", TOKENS[:9])
    compute(kv, "b", TOKENS[20:29])
    kv.free("a")
    assert kv.forget_prefixes() == 2
    assert compute(kv, "c", TOKENS[:9]) == 0
    assert compute(kv, "d", TOKENS[20:29]) == 8


def test_evicting_starts_at_the_end_of_a_prefix() -> None:
    kv = manager(num_blocks=3)
    compute(kv, "a", TOKENS[:12])
    kv.free("a")
    kv.create("b")
    kv.append("b", 4)
    assert kv.lookup(kv.prefix_chain(("",)), TOKENS[:13]).num_tokens == 8


def test_fork_shares_all_and_copies_at_the_first_append() -> None:
    kv = manager()
    compute(kv, "a", TOKENS[:6])
    kv.fork("a", "b")
    kv.fork("a", "c")
    before = kv.block_table("a", 0).tolist()
    assert kv.num_used_blocks == 2
    assert kv.num_shared_tails == 3
    assert kv.take_copies() == []

    kv.append("b", 7)
    (copy,) = kv.take_copies()
    assert (copy.kv_group, copy.source) == (0, before[1])
    assert kv.block_table("b", 0).tolist() == [before[0], copy.destination]
    kv.append("a", 7)
    assert [copy.source for copy in kv.take_copies()] == [before[1]]
    kv.append("c", 7)
    assert kv.take_copies() == [], "the last one keeps the block"
    assert kv.block_table("c", 0).tolist() == before
    assert kv.num_shared_tails == 0
    assert kv.num_used_blocks == 4


def test_fork_at_a_block_border_copies_nothing() -> None:
    kv = manager()
    compute(kv, "a", TOKENS[:8])
    kv.fork("a", "b")
    kv.append("a", 9)
    kv.append("b", 9)
    assert kv.take_copies() == []
    assert kv.num_used_blocks == 4


def test_copy_needs_a_block() -> None:
    kv = manager(num_blocks=2)
    compute(kv, "a", TOKENS[:6])
    kv.fork("a", "b")
    assert not kv.can_append("b", 7)
    kv.free("a")
    assert kv.can_append("b", 7)
    kv.append("b", 7)
    assert kv.take_copies() == []


def test_window_lets_go_of_what_it_has_passed() -> None:
    kv = manager(windows=(None, 8))
    kv.create("a", kv.prefix_chain())
    tokens = TOKENS[:40]
    for end in range(1, 41):
        kv.append("a", end)
        kv.commit("a", tokens, end)
        table = kv.block_table("a", 1).tolist()
        # The token at position `end` sees from end - 7 on; borders are looked at when crossed.
        crossed = end // 4 * 4
        first_seen = max(0, crossed - 7) // 4
        assert [block >= 0 for block in table] == [
            index >= first_seen for index in range(len(table))
        ]
        assert (kv.block_table("a", 0) >= 0).all()
    assert kv.pools[1].num_used == 2
    check_conservation(kv)


def test_hit_needs_the_windows_last_blocks_only() -> None:
    kv = manager(windows=(None, 8))
    compute(kv, "a", TOKENS[:33])
    kv.free("a")
    hit = kv.lookup(kv.prefix_chain(("",)), TOKENS[:33])
    # The token at position 32 sees from 25 on: blocks 6 and 7 of the window's group.
    assert hit.num_blocks == 8
    assert [block >= 0 for block in hit.blocks[1]] == [False] * 6 + [True] * 2
    kv.create("b", kv.prefix_chain(("",)), hit)
    assert kv.block_table("b", 1).tolist() == hit.blocks[1]
    check_conservation(kv)


def test_hit_shrinks_to_what_the_window_still_holds() -> None:
    kv = KVCacheManager(kv_spec((None, 8)), [32, 8], True)
    compute(kv, "a", TOKENS[:32])
    kv.free("a")
    kv.create("b")  # takes a free block of each group: of the window's, the least recent prefix
    kv.append("b", 4)
    evicted = kv.lookup(kv.prefix_chain(("",)), TOKENS[:9])
    assert evicted.num_blocks < 2
    # Any length needs two whole blocks in a row, and none that was evicted.
    assert kv.lookup(kv.prefix_chain(("",)), TOKENS[:32]).num_blocks == 7


def test_tables_and_slots_of_a_batch() -> None:
    kv = manager(windows=(None, 8))
    for seq, length in (("a", 5), ("b", 21)):
        compute(kv, seq, [len(seq) + length + token for token in range(length)])
    rows = kv.rows(["b", "a"])
    tables = np.zeros((2, 3, 8), dtype=np.int32)
    kv.write_block_tables(rows, tables)
    for group in range(2):
        for index, seq in enumerate(("b", "a")):
            table = kv.block_table(seq, group)
            assert tables[group, index, : len(table)].tolist() == table.tolist()
            assert (tables[group, index, len(table) :] == -1).all()
    slots = np.zeros((2, 4), dtype=np.int64)
    kv.write_slots(rows[[0, 0, 1]], np.array([19, 20, 4], dtype=np.int32), slots)
    for group in range(2):
        b, a = kv.block_table("b", group), kv.block_table("a", group)
        assert slots[group].tolist() == [b[4] * 4 + 3, b[5] * 4, a[1] * 4, 0]


def test_tables_grow_with_what_comes_and_rows_are_clean() -> None:
    kv = manager(num_blocks=64)
    for seq in range(5):
        kv.create(seq)
        kv.append(seq, 40)
        assert len(kv.block_table(seq, 0)) == 10
    check_conservation(kv)
    kv.free(3)
    kv.create(9)
    kv.append(9, 4)
    tables = np.zeros((1, 1, 10), dtype=np.int32)
    kv.write_block_tables(kv.rows([9]), tables)
    assert tables[0, 0, 0] >= 0
    assert (tables[0, 0, 1:] == -1).all()
