"""Runs steps on all ranks: rank 0 in the caller's thread, the others wherever they are."""

from __future__ import annotations

import os

from takt.engine.rank_group import RankGroup
from takt.engine.rank_model import RankModel
from takt.engine.rank_wire import RankSizes
from takt.engine.sizing import EngineSizes
from takt.errors import EngineDeadError
from takt.parallel.segment import Segment
from takt.types.step import StepInput, StepLimits, StepOutput


class RankExecutor:
    """Several steps in flight where there are stages: each works on another one.

    `submit` runs the first stage of a step; `wait` sleeps until its last stage has sampled.
    """

    runs_native = True

    def __init__(
        self, model: RankModel, others: RankGroup, sizes: EngineSizes, all_reduce_dtype: str
    ) -> None:
        self._others = others
        rank_sizes = RankSizes.of(sizes, all_reduce_dtype)
        plan = model.segment_plan(rank_sizes)
        self.max_steps_in_flight = plan.num_buffers
        fd = Segment.create_file(plan)
        try:
            self._segment = Segment(plan, fd)
            # Threads bind in their own time too, so rank 0 need not be ready first.
            self._program = model.bind(rank_sizes, self._segment)
            others.bind(rank_sizes, self._segment, fd)
        finally:
            os.close(fd)
        self._submitted_signal, self._completed_signal = self._segment.signals(model.spin_ns)
        self._buffers = {id(step): i for i, step in enumerate(self._program.steps)}
        self._num_submitted = 0
        self._num_completed = 0

    def step_memory(self, limits: StepLimits, index: int) -> tuple[StepInput, StepOutput]:
        return self._program.steps[index], self._program.outputs[index]

    def submit(self, step: StepInput, output: StepOutput) -> None:
        self._num_submitted += 1
        number = self._num_submitted
        self._segment.order[number % self.max_steps_in_flight] = self._buffers[id(step)]
        self._submitted_signal.post(number)
        try:
            self._program.run(number)
        except EngineDeadError:
            raise EngineDeadError(self._others.cause()) from None

    def wait(self) -> None:
        self._num_completed += 1
        if not self._completed_signal.wait(self._num_completed):
            raise EngineDeadError(self._others.cause())

    def close(self) -> None:
        """Ends all other ranks."""
        self._segment.abort()
        self._others.close()
