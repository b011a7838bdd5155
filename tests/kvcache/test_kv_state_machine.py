"""After any sequence of verbs, every sequence reads its own text and no block is lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from kv_memory import KVMemory, check_conservation, kv_spec
from takt.kvcache.manager import KVCacheManager
from takt.kvcache.prefix import PrefixChain

TOKEN = st.integers(0, 1)


class Sequence:
    def __init__(self, salt: str, tokens: list[int], chain: PrefixChain | None) -> None:
        self.salt = salt
        self.tokens = tokens
        self.chain = chain


class KVCacheMachine(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    @initialize(
        windows=st.sampled_from([(None,), (None, 6), (5,), (3, None, 9)]),
        num_blocks=st.integers(4, 24),
        caching=st.booleans(),
    )
    def start(self, windows: tuple[int | None, ...], num_blocks: int, caching: bool) -> None:
        self.kv = KVCacheManager(kv_spec(windows), [num_blocks] * len(windows), caching)
        self.memory = KVMemory(self.kv)
        self.live: list[Sequence] = []

    def run(self, seq: Sequence, new_tokens: list[int], start: int) -> bool:
        tokens = seq.tokens + new_tokens
        if not self.kv.can_append(seq, len(tokens)):
            return False
        self.kv.append(seq, len(tokens))
        seq.tokens = tokens
        self.memory.copy_blocks(self.kv.take_copies())
        self.memory.write(seq, seq.salt, tokens, start)
        self.memory.check(seq, seq.salt, tokens, start)
        self.kv.commit(seq, tokens, len(tokens))
        return True

    @rule(target=sequences, salt=st.sampled_from("ab"), tokens=st.lists(TOKEN, min_size=1))
    def create(self, salt: str, tokens: list[int]) -> Sequence:
        chain = self.kv.prefix_chain((salt,))
        seq = Sequence(salt, [], chain)
        hit = self.kv.lookup(chain, tokens)
        assert hit.num_tokens < len(tokens)
        self.kv.create(seq, chain, hit)
        if not self.run(seq, tokens, hit.num_tokens):
            seq.tokens = tokens[: hit.num_tokens]
        self.live.append(seq)
        return seq

    @rule(seq=sequences, tokens=st.lists(TOKEN, min_size=1, max_size=9))
    def append(self, seq: Sequence, tokens: list[int]) -> None:
        self.run(seq, tokens, len(seq.tokens))

    @rule(target=sequences, seq=sequences)
    def fork(self, seq: Sequence) -> Sequence:
        child = Sequence(seq.salt, list(seq.tokens), seq.chain.fork() if seq.chain else None)
        self.kv.fork(seq, child, child.chain)
        self.live.append(child)
        return child

    @rule(seq=consumes(sequences))
    def free(self, seq: Sequence) -> None:
        self.live.remove(seq)
        self.kv.free(seq)

    @rule()
    def forget_prefixes(self) -> None:
        self.kv.forget_prefixes()
        for pool in self.kv.pools:
            assert pool.num_cached <= pool.num_used

    @invariant()
    def all_read_their_own_text(self) -> None:
        for seq in self.live:
            if seq.tokens:
                self.memory.check(seq, seq.salt, seq.tokens, len(seq.tokens))
        check_conservation(self.kv)

    def teardown(self) -> None:
        if hasattr(self, "live"):
            for seq in self.live:
                self.kv.free(seq)
            assert self.kv.num_used_blocks == 0
            assert self.kv.num_sequences == 0


TestKVCache = KVCacheMachine.TestCase
TestKVCache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
