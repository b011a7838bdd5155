"""The shared memory of an engine's ranks: one file without a name, mapped by all of them."""

from __future__ import annotations

import dataclasses
import mmap
import os
from dataclasses import dataclass

import numpy as np

from takt.errors import ConfigError
from takt.parallel.layout import ParallelLayout
from takt.parallel.links import RankLinks
from takt.parallel.shard import Shard
from takt.types.step import StepLimits, input_layout, output_layout

try:
    from takt import _native
except ImportError as error:
    raise ConfigError(
        f"ranks share memory through the native module takt._native, which cannot be loaded "
        f"({error}); run `make install` (it needs g++), or use one rank with --backend torch"
    ) from error

_LINE = 64
_PAGE = 4096
_FLOAT_BYTES = 4
TRANSFERS_PER_STEP = 2
"""Hidden states and their residual go from stage to stage."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Where everything lies; all ranks compute the same from the same arguments."""

    layout: ParallelLayout
    num_buffers: int
    input_bytes: int
    output_bytes: int
    group_slot_bytes: int
    channel_slot_bytes: int

    @staticmethod
    def of(
        layout: ParallelLayout,
        limits: StepLimits,
        *,
        hidden_size: int,
        shard: Shard,
        num_buffers: int,
    ) -> SegmentPlan:
        """`num_buffers` steps may be in flight; `shard` is that of any rank."""
        vocab_size = shard.vocab_borders[-1]
        widest = max(np.diff(shard.vocab_borders).tolist())
        block_rows = _native.logits_block_rows(dataclasses.asdict(limits), vocab_size)
        hidden_bytes = limits.max_num_tokens * hidden_size * _FLOAT_BYTES
        return SegmentPlan(
            layout=layout,
            num_buffers=num_buffers,
            input_bytes=input_layout(limits).nbytes,
            output_bytes=output_layout(limits).nbytes,
            group_slot_bytes=max(hidden_bytes, block_rows * widest * _FLOAT_BYTES),
            channel_slot_bytes=hidden_bytes,
        )

    @property
    def num_channel_slots(self) -> int:
        return TRANSFERS_PER_STEP * self.num_buffers

    # -- offsets, in the order of the file ----------------------------------------------------
    # The abort word comes first, then the order of buffers, the signals, the steps, the links.
    @property
    def order_offset(self) -> int:
        return _LINE

    def signal_offset(self, index: int) -> int:
        """Signal 0 counts submitted steps, signal 1 completed ones."""
        start = _up(self.order_offset + 8 * self.num_buffers, _LINE)
        return start + index * _up(_native.Signal.bytes(), _LINE)

    def input_offset(self, buffer: int) -> int:
        start = _up(self.signal_offset(2), _PAGE)
        return start + buffer * _up(self.input_bytes, _PAGE)

    def output_offset(self, buffer: int) -> int:
        return self.input_offset(self.num_buffers) + buffer * _up(self.output_bytes, _PAGE)

    def group_offset(self, stage: int) -> int:
        size = _native.Communicator.bytes(self.layout.tensor_size, self.group_slot_bytes)
        return self.output_offset(self.num_buffers) + stage * _up(size, _PAGE)

    def channel_offset(self, stage: int, tensor_rank: int) -> int:
        """Of the channel that leaves `stage`."""
        size = _native.Channel.bytes(self.num_channel_slots, self.channel_slot_bytes)
        index = stage * self.layout.tensor_size + tensor_rank
        return self.group_offset(self.layout.num_stages) + index * _up(size, _PAGE)

    @property
    def num_bytes(self) -> int:
        return self.channel_offset(self.layout.num_stages, 0)


class Segment:
    """A mapping of the file. Pages cost memory once a rank touches them."""

    def __init__(self, plan: SegmentPlan, fd: int) -> None:
        self.plan = plan
        self.memory = np.frombuffer(mmap.mmap(fd, plan.num_bytes), dtype=np.uint8)
        order = self.part(plan.order_offset, 8 * plan.num_buffers)
        self.order: np.ndarray = order.view(np.int64)
        """The buffer of step n is `order[n % num_buffers]`."""

    @staticmethod
    def create_file(plan: SegmentPlan) -> int:
        """A file descriptor to be closed by the caller once all ranks have mapped it."""
        fd = os.memfd_create("takt-ranks")
        os.truncate(fd, plan.num_bytes)
        return fd

    def part(self, offset: int, num_bytes: int) -> np.ndarray:
        return self.memory[offset : offset + num_bytes]

    def input_buffer(self, buffer: int) -> np.ndarray:
        return self.part(self.plan.input_offset(buffer), self.plan.input_bytes)

    def output_buffer(self, buffer: int) -> np.ndarray:
        return self.part(self.plan.output_offset(buffer), self.plan.output_bytes)

    def signals(self, spin_ns: int) -> tuple[_native.Signal, _native.Signal]:
        """Of submitted and of completed steps."""
        submitted, completed = (
            _native.Signal(self.memory, self.plan.signal_offset(index), spin_ns)
            for index in range(2)
        )
        return submitted, completed

    def links(self, rank: int, spin_ns: int, all_reduce_dtype: str = "float32") -> RankLinks:
        """`all_reduce_dtype` is what sums exchange: a key of `compression.FORMAT_OF_DTYPE`."""
        plan, layout = self.plan, self.plan.layout
        stage, tensor_rank = layout.stage_of(rank), layout.tensor_rank_of(rank)
        group = None
        if layout.tensor_size > 1:
            group = _native.Communicator(
                self.memory,
                plan.group_offset(stage),
                tensor_rank,
                layout.tensor_size,
                plan.group_slot_bytes,
                spin_ns,
                all_reduce_dtype,
            )
        return RankLinks(
            group=group,
            previous=self.channel(stage - 1, tensor_rank, spin_ns) if stage > 0 else None,
            next=(
                self.channel(stage, tensor_rank, spin_ns) if stage < layout.num_stages - 1 else None
            ),
        )

    def channel(self, stage: int, tensor_rank: int, spin_ns: int) -> _native.Channel:
        """The ring that leaves `stage`; each end counts its own transfers from 1."""
        return _native.Channel(
            self.memory,
            self.plan.channel_offset(stage, tensor_rank),
            self.plan.num_channel_slots,
            self.plan.channel_slot_bytes,
            spin_ns,
        )

    @property
    def is_aborted(self) -> bool:
        return bool(self.part(0, 4).view(np.uint32)[0])

    def abort(self) -> None:
        """Ends all waits of all ranks, now and later."""
        _native.abort_segment(self.memory)
        for signal in self.signals(0):
            signal.wake()


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
