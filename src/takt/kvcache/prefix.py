"""Names of full blocks by content, so that equal prefixes can share them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

Digest = Callable[[bytes], bytes]


class BlockKey(NamedTuple):
    """Content of one full block and of everything before it.

    `digest` is H(parent, tokens); `parent` is the digest of the block before, or of the extra keys
    for a first block. `tokens` are the block's token ids as int32 bytes: they are compared on a
    hit, so that a collision of digests is a miss and never another text's KV.
    """

    digest: bytes
    parent: bytes
    tokens: bytes


def blake2b_128(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class PrefixChain:
    """Keys of a sequence's full blocks, made as its tokens become known.

    `extra_keys` is whatever else must be equal for KV to be shared, such as a tenant's salt. Where
    generated tokens are computed in another precision than a prompt's, `num_given` says how many
    tokens are the prompt's: a block that holds others is shared only with one that was generated
    from there on too. None: all tokens are computed alike.
    """

    __slots__ = ("_block_size", "_digest", "_num_given", "_pack", "_root", "keys")

    def __init__(
        self,
        block_size: int,
        extra_keys: Sequence[str] = (),
        digest: Digest = blake2b_128,
        *,
        num_given: int | None = None,
    ) -> None:
        self._block_size = block_size
        self._num_given = num_given
        self._digest = digest
        self._pack = struct.Struct(f"{block_size}i").pack  # half of an array's time
        # Lengths go in too: ("ab", "c") and ("a", "bc") are different keys.
        parts = [key.encode() for key in extra_keys]
        self._root = digest(b"".join(len(part).to_bytes(4, "little") + part for part in parts))
        self.keys: list[BlockKey] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Makes the keys of the first `num_blocks` blocks that are still missing."""
        size, keys = self._block_size, self.keys
        parent = keys[-1].digest if keys else self._root
        for index in range(len(keys), num_blocks):
            tokens = self._pack(*token_ids[index * size : (index + 1) * size])
            key = BlockKey(self._digest(parent + tokens + self._mark(index)), parent, tokens)
            keys.append(key)
            parent = key.digest

    def _mark(self, index: int) -> bytes:
        """Tells a block with generated tokens from one without; empty for the latter."""
        end = (index + 1) * self._block_size
        if self._num_given is None or end <= self._num_given:
            return b""
        return b"generated" + max(self._num_given - end + self._block_size, 0).to_bytes(4, "little")

    def fork(self) -> PrefixChain:
        """An independent chain with the same keys so far."""
        child = PrefixChain.__new__(PrefixChain)
        child._block_size = self._block_size
        child._digest = self._digest
        child._num_given = self._num_given
        child._pack = self._pack
        child._root = self._root
        child.keys = self.keys.copy()
        return child
