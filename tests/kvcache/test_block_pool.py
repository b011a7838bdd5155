"""A pool of blocks: references, the order of reuse, published prefixes."""

from __future__ import annotations

import random

import pytest

from takt.errors import InvariantError
from takt.kvcache.block_pool import BlockPool
from takt.kvcache.free_queue import FreeQueue
from takt.kvcache.prefix import BlockKey


def key(name: str, tokens: bytes = b"t") -> BlockKey:
    return BlockKey(name.encode(), b"parent", tokens)


def test_free_queue_behaves_as_a_list() -> None:
    rng = random.Random(7)
    queue, expected, out = FreeQueue(9), list(range(9)), list[int]()
    for _ in range(2000):
        verb = rng.choice(["pop", "front", "back", "remove"])
        if verb == "pop" and expected:
            out.append(queue.pop_front())
            assert out[-1] == expected.pop(0)
        elif verb == "remove" and expected:
            block = rng.choice(expected)
            queue.remove(block)
            expected.remove(block)
            out.append(block)
        elif verb == "front" and out:
            expected.insert(0, out.pop())
            queue.push_front(expected[0])
        elif verb == "back" and out:
            expected.append(out.pop(0))
            queue.push_back(expected[-1])
        assert queue.ids() == expected
        assert queue.size == len(expected)


def test_empty_pool_hands_out_nothing() -> None:
    pool = BlockPool(0)
    with pytest.raises(InvariantError):
        pool.allocate()


def test_every_block_is_handed_out_once_and_then_none() -> None:
    pool = BlockPool(3)
    assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2]
    assert pool.num_free == 0
    with pytest.raises(InvariantError):
        pool.allocate()


def test_block_is_free_with_its_last_reference_only() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.share(block)
    pool.release(block)
    assert (pool.num_free, pool.ref_counts[block]) == (1, 1)
    pool.release(block)
    assert pool.num_free == 2
    with pytest.raises(InvariantError):
        pool.release(block)


def test_published_block_is_found_until_it_is_handed_out_again() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.publish(block, key("a"))
    pool.release(block)
    assert pool.lookup(key("a")) == block
    other = pool.allocate()
    assert other != block, "a block without content goes first"
    assert pool.lookup(key("a")) == block
    assert pool.allocate() == block
    assert pool.lookup(key("a")) is None
    assert pool.num_cached == 0


def test_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    for block, name in zip(blocks, "abc", strict=True):
        pool.publish(block, key(name))
        pool.release(block)
    pool.share(blocks[0])  # used again, hence the most recent
    pool.release(blocks[0])
    assert [pool.allocate() for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]


def test_shared_free_block_leaves_the_queue() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.publish(block, key("a"))
    pool.release(block)
    pool.share(block)
    assert pool.num_free == 1
    assert pool.allocate() != block


def test_equal_digest_of_other_tokens_is_a_miss() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.publish(block, key("a", tokens=b"one"))
    assert pool.lookup(key("a", tokens=b"two")) is None
    assert pool.lookup(BlockKey(b"a", b"other parent", b"one")) is None
    assert pool.lookup(key("a", tokens=b"one")) == block


def test_first_of_equal_blocks_counts() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, key("a"))
    pool.publish(second, key("a"))
    pool.publish(first, key("b"))
    assert pool.lookup(key("a")) == first
    assert pool.lookup(key("b")) is None
    assert pool.num_cached == 1


def test_forgetting_spares_what_is_used() -> None:
    pool = BlockPool(3)
    used, unused = pool.allocate(), pool.allocate()
    pool.publish(used, key("a"))
    pool.publish(unused, key("b"))
    pool.release(unused)
    assert pool.forget_unused() == 1
    assert pool.lookup(key("a")) == used
    assert pool.lookup(key("b")) is None
    assert pool.num_free == 2


def test_reset_frees_everything() -> None:
    pool = BlockPool(4)
    for _ in range(4):
        pool.publish(pool.allocate(), key("a"))
    pool.reset()
    assert pool.num_free == 4
    assert pool.num_cached == 0
    assert pool.lookup(key("a")) is None
