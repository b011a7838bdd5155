"""Steps of any shape on a real runner, without requests: for measuring how long they take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from takt.clock import Clock
from takt.engine.executor import Executor
from takt.engine.runner import Runner
from takt.engine.sizing import EngineSizes
from takt.errors import InvariantError
from takt.kvcache.block_tables import NO_BLOCK
from takt.scheduler.calibration_steps import DummyStep
from takt.scheduler.decode_batch import DecodeBatch
from takt.scheduler.output import ScheduledRequest, SchedulerOutput
from takt.scheduler.request import Request
from takt.types.sampling_params import SamplingParams

_TOKEN_ID = 1


class _DummyTables:
    """Block tables of sequences that nobody owns.

    Each takes the next blocks of its pool and begins again where the pool ends: they read
    different memory as long as there is enough. What they write, nobody reads.
    """

    def __init__(self, sizes: EngineSizes) -> None:
        self._num_blocks = sizes.num_blocks
        self._windows = [group.window for group in sizes.kv.groups]
        self._block_size = sizes.kv.block_size
        self._ends: list[int] = []
        self._first_blocks: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def place(self, ends: list[int]) -> None:
        """Gives each sequence of the next step its blocks; `ends` are contexts after it."""
        blocks = [-(-end // self._block_size) for end in ends]
        self._ends = ends
        self._first_blocks = np.cumsum([0, *blocks[:-1]], dtype=np.int64)

    @property
    def tables(self) -> npt.NDArray[np.int32]:
        raise InvariantError("a dummy step goes on from no other")

    def rows(self, seqs: Sequence[Request]) -> npt.NDArray[np.int64]:
        return np.arange(len(seqs), dtype=np.int64)

    def write_block_tables(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
        width = out.shape[2]
        columns = np.arange(width, dtype=np.int64)
        ends = np.array(self._ends, dtype=np.int64)[rows]
        is_used = columns[None, :] < -(-ends // self._block_size)[:, None]
        for group, num_blocks in enumerate(self._num_blocks):
            blocks = (self._first_blocks[rows][:, None] + columns[None, :]) % num_blocks
            out[group, : len(rows)] = np.where(is_used, blocks, NO_BLOCK)

    def write_slots(
        self,
        token_rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        out: npt.NDArray[np.int64],
    ) -> None:
        block, offset = np.divmod(positions.astype(np.int64), self._block_size)
        for group, num_blocks in enumerate(self._num_blocks):
            blocks = (self._first_blocks[token_rows] + block) % num_blocks
            out[group, : len(token_rows)] = blocks * self._block_size + offset


class DummySteps:
    """Runs steps one after the other; each takes as long as one of that shape in service."""

    def __init__(self, executor: Executor, sizes: EngineSizes, clock: Clock) -> None:
        self._tables = _DummyTables(sizes)
        self._runner = Runner(executor, sizes.limits, sizes.kv.block_size, self._tables, clock)
        self._clock = clock
        self._num_steps = 0

    def run_ns(self, shape: DummyStep) -> int:
        """Nanoseconds from the filling of the step's input to the reading of its output."""
        decode = [(shape.context - 1, 1)] * shape.num_decode_seqs
        prefill = [(shape.prefill_start, shape.num_prefill_tokens)] * (shape.num_prefill_tokens > 0)
        spans = [*decode, *prefill]
        requests = [
            _request(f"{self._num_steps}-{i}", start + count)
            for i, (start, count) in enumerate(spans)
        ]
        decoding, computing = requests[: len(decode)], requests[len(decode) :]
        self._tables.place([start + count for start, count in spans])
        step = SchedulerOutput(
            step_id=self._num_steps,
            batch=DecodeBatch(decoding, [start for start, _ in decode]),
            batch_step=0,
            begins_block=True,
            num_decode_kv_tokens=shape.context * len(decode),
            prompts=[
                ScheduledRequest(request, *span, samples=False)
                for request, span in zip(computing, prefill, strict=True)
            ],
            num_prefill_tokens=shape.num_prefill_tokens,
            block_copies=[],
            preempted=[],
        )
        self._num_steps += 1
        start_ns = self._clock.now_ns()
        self._runner.submit(step)
        self._runner.wait()
        end_ns = self._clock.now_ns()
        for request in requests:
            self._runner.release(request)
        return max(end_ns - start_ns, 1)


def _request(name: str, num_tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=[_TOKEN_ID] * num_tokens,
        sampling=SamplingParams(),
        max_tokens=1,
        stop_token_ids=frozenset(),
        arrival_ns=0,
    )
