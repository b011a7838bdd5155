"""Runs steps on ranks that are in other processes, on this host and on others."""

from __future__ import annotations

from takt.engine.rank_wire import RankSizes
from takt.engine.remote_ranks import RemoteRanks
from takt.engine.sizing import EngineSizes
from takt.errors import EngineDeadError, InvariantError
from takt.parallel.segment import SegmentPlan
from takt.parallel.step_links import StepReceiver, StepSender
from takt.types.step import StepInput, StepLimits, StepOutput


class HostsExecutor:
    """As many steps in flight as the pipeline has stages.

    `submit` shows a step to this host's ranks and sends it to each other host once; `wait` sleeps
    until the last stage has sampled, here or there.
    """

    runs_native = True

    def __init__(
        self, ranks: RemoteRanks, sizes: EngineSizes, plan: SegmentPlan, all_reduce_dtype: str
    ) -> None:
        self._ranks = ranks
        self.max_steps_in_flight = plan.num_buffers
        limits, block_size = sizes.limits, sizes.kv.block_size
        self._segment = ranks.bind(RankSizes.of(sizes, all_reduce_dtype), plan)
        buffers = range(plan.num_buffers)
        self._steps = [StepInput(limits, self._segment.input_buffer(i)) for i in buffers]
        self._outputs = [StepOutput(limits, self._segment.output_buffer(i)) for i in buffers]
        self._buffers = {id(step): i for i, step in enumerate(self._steps)}
        self._submitted_signal, self._completed_signal = self._segment.signals(0)
        self._sender = StepSender(ranks.step_links, limits, block_size)
        self._results: StepReceiver | None = None
        if ranks.results is not None:
            self._results = StepReceiver(ranks.results, self._steps, self._outputs, block_size)
        self._num_submitted = 0
        self._num_completed = 0

    def step_memory(self, limits: StepLimits, index: int) -> tuple[StepInput, StepOutput]:
        return self._steps[index], self._outputs[index]

    def submit(self, step: StepInput, output: StepOutput) -> None:
        self._num_submitted += 1
        number, buffer = self._num_submitted, self._buffers[id(step)]
        self._segment.order[number % self.max_steps_in_flight] = buffer
        self._submitted_signal.post(number)
        if self._ranks.step_links:
            try:
                self._sender.send_input(number, buffer, step)
            except EngineDeadError as error:
                self._ranks.end(str(error))
                raise EngineDeadError(self._ranks.cause()) from None

    def wait(self) -> None:
        self._num_completed += 1
        if self._results is None:
            if not self._completed_signal.wait(self._num_completed):
                raise EngineDeadError(self._ranks.cause())
            return
        received = self._results.receive_output()
        if received is None:
            raise EngineDeadError(self._ranks.cause())
        if received[0] != self._num_completed:
            raise InvariantError(f"step {received[0]} came back as step {self._num_completed}")
