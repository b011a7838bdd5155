"""Which replica has which prefixes: an estimate from what each was sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from takt.kvcache.prefix import PrefixChain

MAX_BLOCKS = 256
"""Blocks of a prompt that are looked at: naming one takes some microseconds of the server's."""


class PrefixDirectory:
    """Names of the blocks that each replica was sent, the least recently used forgotten first.

    A table holds as many names as the replica's pool has blocks, so it errs as the pool's own LRU
    does. Names are those of the prefix cache.
    """

    def __init__(self, block_size: int, capacities: Sequence[int]) -> None:
        """`capacities` are the blocks of each replica's pool."""
        self._block_size = block_size
        self._capacities = list(capacities)
        self._known: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in capacities]

    def names(self, token_ids: Sequence[int], extra_keys: Sequence[str] = ()) -> list[bytes]:
        """Of the prompt's first blocks, as far as one of them could be a hit."""
        num_blocks = min((len(token_ids) - 1) // self._block_size, MAX_BLOCKS)
        if num_blocks <= 0:
            return []
        chain = PrefixChain(self._block_size, extra_keys)
        chain.extend(token_ids, num_blocks)
        return [key.digest for key in chain.keys]

    def num_cached_tokens(self, replica: int, names: Sequence[bytes]) -> int:
        """Tokens at the beginning of the prompt that the replica should have."""
        known, num_blocks = self._known[replica], 0
        for name in names:
            if name not in known:
                break
            num_blocks += 1
        return num_blocks * self._block_size

    def sent(self, replica: int, names: Sequence[bytes]) -> None:
        """The replica has these, or will have computed them before whatever is sent to it next."""
        known = self._known[replica]
        # The end of a prompt is evicted before its beginning, as in the pool.
        for name in reversed(names):
            known[name] = None
            known.move_to_end(name)
        while len(known) > self._capacities[replica]:
            known.popitem(last=False)

    def restart(self, replica: int, capacity: int) -> None:
        """A new engine: it has nothing."""
        self._known[replica].clear()
        self._capacities[replica] = capacity
