"""Cold prefixes in host memory: what goes there, what comes back, what is forgotten."""

from __future__ import annotations

from takt.kvcache.host_tier import MAX_HOST_COPIES, HostTier
from takt.kvcache.manager import KVCacheManager
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec

SIZE = 8


def manager(
    num_blocks: int = 8, num_host_blocks: int = 16, window: int | None = None
) -> KVCacheManager:
    groups = [KVGroupSpec((0,), None)]
    if window is not None:
        groups.append(KVGroupSpec((1,), window))
    spec = KVCacheSpec(tuple(groups), 1, 8, SIZE, KVDtype.F32)
    counts = [num_blocks] * len(groups)
    return KVCacheManager(spec, counts, True, num_host_blocks=[num_host_blocks] * len(groups))


def compute(kv: KVCacheManager, name: str, tokens: list[int]) -> int:
    """Runs a sequence to its end; returns what was cached."""
    chain = kv.prefix_chain()
    kv.restore(chain, tokens)
    hit = kv.lookup(chain, tokens)
    kv.create(name, chain, hit)
    kv.append(name, len(tokens))
    kv.commit(name, tokens, len(tokens))
    kv.free(name)
    return hit.num_tokens


def prompt(number: int, num_blocks: int) -> list[int]:
    """So many full blocks, and a token."""
    return [100 * number + i for i in range(num_blocks * SIZE + 1)]


def test_the_coldest_share_is_copied_behind_the_pool() -> None:
    kv = manager()
    for number in (1, 2):
        compute(kv, f"{number}", prompt(number, 3))
    kv.offload_cold(hot_share=0.6)
    copies = kv.take_copies()
    # Of six cached blocks four stay; the end of the older prompt is the coldest.
    assert [(c.kv_group, c.destination) for c in copies] == [(0, 8), (0, 9)]
    assert [c.source for c in copies] == kv.pools[0].free_ids()[2:4]
    kv.offload_cold(hot_share=0.6)
    assert kv.take_copies() == [], "they are there already"


def test_what_is_in_use_is_never_cold() -> None:
    kv = manager()
    tokens = prompt(1, 3)
    chain = kv.prefix_chain()
    kv.create("a", chain)
    kv.append("a", len(tokens))
    kv.commit("a", tokens, len(tokens))
    kv.offload_cold(hot_share=0.0)
    assert kv.take_copies() == []


def test_an_evicted_prefix_comes_back_from_host_memory() -> None:
    kv = manager()
    compute(kv, "first", prompt(1, 3))
    kv.offload_cold(hot_share=0.0)
    assert len(kv.take_copies()) == 3
    compute(kv, "others", prompt(2, 7))
    assert kv.lookup(kv.prefix_chain(), prompt(1, 3)).num_tokens == 0, "it was evicted"
    assert compute(kv, "again", prompt(1, 3)) == 3 * SIZE
    copies = kv.take_copies()
    assert [c.source for c in copies] == [10, 9, 8], "in the order of the prompt"
    assert kv.host is not None
    assert kv.host.num_restored_blocks == 3


def test_restoring_keeps_what_the_pool_has_of_the_prefix() -> None:
    kv = manager(num_blocks=4)
    compute(kv, "first", prompt(1, 3))
    kv.offload_cold(hot_share=0.0)
    kv.take_copies()
    compute(kv, "other", prompt(2, 1))  # takes the free block and the end of the first
    assert kv.lookup(kv.prefix_chain(), prompt(1, 3)).num_tokens == 2 * SIZE
    assert compute(kv, "again", prompt(1, 3)) == 3 * SIZE


def test_a_window_restores_what_the_next_token_sees() -> None:
    kv = manager(window=2 * SIZE)
    compute(kv, "first", prompt(1, 3))
    kv.offload_cold(hot_share=0.0)
    assert {c.kv_group for c in kv.take_copies()} == {0, 1}
    compute(kv, "others", prompt(2, 7))
    assert compute(kv, "again", prompt(1, 3)) == 3 * SIZE


def test_a_step_makes_a_bounded_number_of_copies() -> None:
    kv = manager(num_blocks=600, num_host_blocks=600)
    compute(kv, "long", prompt(1, 400))
    kv.offload_cold(hot_share=0.0)
    assert len(kv.take_copies()) == MAX_HOST_COPIES
    kv.offload_cold(hot_share=0.0)
    assert len(kv.take_copies()) == 400 - MAX_HOST_COPIES


def test_without_host_memory_nothing_happens() -> None:
    kv = manager(num_host_blocks=0)
    compute(kv, "first", prompt(1, 3))
    kv.offload_cold(hot_share=0.0)
    assert kv.host is None
    assert kv.take_copies() == []
    assert not kv.restore(kv.prefix_chain(), prompt(1, 3))


def test_the_least_recently_used_is_forgotten_first_and_collisions_miss() -> None:
    kv = manager()
    chains = []
    for number in (1, 2, 3):
        chain = kv.prefix_chain()
        assert chain is not None
        chain.extend(prompt(number, 1), 1)
        chains.append(chain.keys[0])
    first, second, third = chains
    tier = HostTier([8], [2])
    assert [tier.place(0, first), tier.place(0, second)] == [8, 9]
    assert tier.find(0, first) == 8
    assert tier.place(0, third) == 9, "the second was used least recently"
    assert tier.find(0, second) is None
    assert tier.find(0, first._replace(tokens=b"other")) is None
    assert tier.place(0, first) is None
    assert tier.num_held(0) == 2
