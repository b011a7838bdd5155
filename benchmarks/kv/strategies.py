"""Four ways to give requests memory for KV: the block pool, and what others do.

Each gets the same calls in the same order. Memory that a strategy takes from the operating system
on the request path is touched page by page, as the step that writes it would; memory made at
start-up (the pool, the slots) needs no touching.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod

import numpy as np
from benchmarks.kv.steps import SPEC, TOKEN_BYTES
from benchmarks.kv.trace import TraceRequest

from takt.kvcache.manager import KVCacheManager

PAGE_BYTES = 4096


class KVStrategy(ABC):
    """Memory for sequences that grow; lengths and sizes are in tokens."""

    name: str

    @abstractmethod
    def grow(self, index: int, length: int) -> bool:
        """Makes room for `length` tokens of request `index`, which may be new.

        Returns whether that took memory.
        """

    def commit(self, index: int, length: int) -> None:  # noqa: B027
        """Says that the first `length` tokens of a request are computed."""

    @abstractmethod
    def free(self, index: int) -> None:
        """Gives a request's memory back."""

    @abstractmethod
    def allocated(self) -> int:
        """Tokens that the memory held for live requests has room for."""

    def extent(self) -> int:
        """Tokens of room that must exist to hold them where they lie, holes included."""
        return self.allocated()

    def place(self, index: int) -> None:  # noqa: B027
        """Follows a `grow` or `free` in a model of the address space; not timed."""


class PagedPool(KVStrategy):
    """Fixed-size blocks, allocated as tokens come."""

    name = "block pool"

    def __init__(self, trace: list[TraceRequest], num_blocks: int, max_num_seqs: int) -> None:
        self._prompts = [request.prompt(index) for index, request in enumerate(trace)]
        self._num_slots: dict[int, int] = {}
        self._kv = KVCacheManager(
            SPEC, [num_blocks], True, max_num_seqs=max_num_seqs, max_model_len=2048
        )

    def grow(self, index: int, length: int) -> bool:
        kv = self._kv
        if not kv.has(index):
            chain = kv.prefix_chain()
            kv.create(index, chain, kv.lookup(chain, self._prompts[index]))
        elif length <= self._num_slots[index]:
            return False
        self._num_slots[index] = kv.append(index, length)
        return True

    def commit(self, index: int, length: int) -> None:
        prompt = self._prompts[index]
        self._kv.commit(index, prompt, min(length, len(prompt)))

    def free(self, index: int) -> None:
        self._kv.free(index)

    def allocated(self) -> int:
        return self._kv.num_used_blocks * SPEC.block_size


class ContiguousSlots(KVStrategy):
    """One slot of max_model_len tokens for each sequence, made at start-up."""

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        self.name = f"contiguous, {max_model_len} each"
        self._max_model_len = max_model_len
        self._free = list(range(num_slots))
        self._slots: dict[int, int] = {}

    def grow(self, index: int, length: int) -> bool:
        if index in self._slots:
            return False
        self._slots[index] = self._free.pop()
        return True

    def free(self, index: int) -> None:
        self._free.append(self._slots.pop(index))

    def allocated(self) -> int:
        return len(self._slots) * self._max_model_len


class DoublingBuffers(KVStrategy):
    """A buffer for each sequence that doubles, and is copied, when it is full."""

    name = "doubling"
    first_capacity = 64

    def __init__(self) -> None:
        self._buffers: dict[int, np.ndarray] = {}
        self._capacity: dict[int, int] = {}
        self._heap = FirstFitHeap()

    def grow(self, index: int, length: int) -> bool:
        capacity = self._capacity.get(index, 0)
        if length <= capacity:
            return False
        wanted = max(capacity, self.first_capacity)
        while wanted < length:
            wanted *= 2
        buffer = fresh_memory(wanted)
        if capacity:
            old = self._buffers[index]
            buffer[: len(old)] = old
        self._buffers[index] = buffer
        self._capacity[index] = wanted
        return True

    def place(self, index: int) -> None:
        self._heap.replace(index, self._capacity.get(index, 0))

    def free(self, index: int) -> None:
        del self._buffers[index], self._capacity[index]

    def allocated(self) -> int:
        return sum(self._capacity.values())

    def extent(self) -> int:
        return self._heap.extent()


class MallocPerRequest(KVStrategy):
    """One allocation for each request, of prompt and max_tokens, freed at its end."""

    name = "malloc/free per request"

    def __init__(self, trace: list[TraceRequest]) -> None:
        self._trace = trace
        self._buffers: dict[int, np.ndarray] = {}
        self._heap = FirstFitHeap()

    def grow(self, index: int, length: int) -> bool:
        if index in self._buffers:
            return False
        self._buffers[index] = fresh_memory(self._size(index))
        return True

    def place(self, index: int) -> None:
        self._heap.replace(index, self._size(index) if index in self._buffers else 0)

    def free(self, index: int) -> None:
        del self._buffers[index]

    def allocated(self) -> int:
        return sum(map(self._size, self._buffers))

    def extent(self) -> int:
        return self._heap.extent()

    def _size(self, index: int) -> int:
        request = self._trace[index]
        return request.num_prompt_tokens + request.num_output_tokens


class FirstFitHeap:
    """Where pieces of any size lie in one address space: each at the lowest place that fits."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}  # by start
        self._places: dict[int, int] = {}  # by owner: start

    def replace(self, owner: int, size: int) -> None:
        """Gives an owner a piece of `size` for the one it has; 0 is none.

        The new piece is found while the old one still lies, as a copy needs it.
        """
        old = self._places.get(owner)
        if old is not None and self._sizes[old] == size:
            return
        if size:
            place = self._lowest_place(size)
            bisect.insort(self._starts, place)
            self._sizes[place] = size
            self._places[owner] = place
        elif old is not None:
            del self._places[owner]
        if old is not None:
            self._starts.remove(old)
            del self._sizes[old]

    def extent(self) -> int:
        return self._starts[-1] + self._sizes[self._starts[-1]] if self._starts else 0

    def _lowest_place(self, size: int) -> int:
        place = 0
        for start in self._starts:
            if start - place >= size:
                break
            place = start + self._sizes[start]
        return place


def fresh_memory(num_tokens: int) -> np.ndarray:
    """KV memory as a step finds it that writes it for the first time: its pages faulted in."""
    buffer = np.empty(num_tokens * TOKEN_BYTES, dtype=np.uint8)
    buffer[::PAGE_BYTES] = 0
    return buffer
