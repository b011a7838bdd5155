"""Replicas in one process on a clock that jumps: the client, router, offload, scheduler and KV pool
are the engine's own, steps take what a formula says, and a minute passes in a second."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from fake_model import FakeTokenizer

from takt.clock import ManualClock
from takt.config import EngineConfig
from takt.engine.build import LoadedModel, build_core
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineCommand,
    EngineEvent,
    OffloadBlocks,
    Shutdown,
    StepMessage,
)
from takt.engine.proc_client import ProcessEngineClient
from takt.engine.process import _ready
from takt.engine.sizing import EngineSizes, KVShape
from takt.scheduler.step_time import StepFeatures
from takt.types.kv import KVGroupSpec
from takt.types.step import StepInput, StepOutput

KV_BYTES_PER_TOKEN = 4
MAX_MODEL_LEN = 2048
DELIVERY_S = 0.0002
"""Between a step's end and the server's having read it."""

StepNs = Callable[[StepFeatures], float]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while all wait, and then at once."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def pass_time(self, seconds: float | None) -> None:
        assert seconds is not None, "everything waits, and nothing will come"
        self._now_s += seconds

    def now_ns(self) -> int:
        """The loop is a clock."""
        return round(self._now_s * 1e9)


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._loop.pass_time(timeout)
        return ready


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


class VirtualEngineClient(ProcessEngineClient):
    """A client whose engine is in this process. `step_ns` tells how long a step takes."""

    step_ns: StepNs

    def _launch(self) -> None:
        self._epoch += 1
        self._gate.restart()
        self._exited.clear()
        self._child: Any = _VirtualChild(
            self._config, self._epoch, self.step_ns, self._on_event, self._on_exit
        )


class _VirtualChild:
    """An `EngineChild` without a process: takes commands between steps, as an engine does."""

    pid = 0

    def __init__(
        self,
        config: EngineConfig,
        epoch: int,
        step_ns: StepNs,
        on_event: Callable[[EngineEvent], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self.epoch = epoch
        self._on_event = on_event
        self._on_exit = on_exit
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._clock = ManualClock()
        self._commands: list[EngineCommand] = []
        self._has_news = asyncio.Event()
        model = _model(lambda step: self._clock.advance(round(step_ns(_features(step)))))
        self._core = build_core(config, model, self._clock)
        loop.call_soon(on_event, _ready(self._core, epoch, 0.0))
        self._task = loop.create_task(self._run())

    def send(self, command: EngineCommand) -> None:
        self._commands.append(command)
        self._has_news.set()

    def receive(self) -> None:
        pass

    def kill(self) -> None:
        self.send(Shutdown())

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        core = self._core
        while self._take_commands():
            if not core.has_work:
                await self._has_news.wait()
                continue
            start_ns = self._loop.now_ns()
            self._clock.advance(start_ns - self._clock.now_ns())
            result = core.step()
            await asyncio.sleep((self._clock.now_ns() - start_ns) / 1e9)
            message = StepMessage(self.epoch, result.all_outputs(), result.stats)
            self._loop.call_later(DELIVERY_S, self._on_event, message)
        core.close()
        self._on_exit(0)

    def _take_commands(self) -> bool:
        """False once the engine is to end."""
        commands, self._commands = self._commands, []
        self._has_news.clear()
        for command in commands:
            match command:
                case AddRequest():
                    self._core.add(command)
                case AbortRequests(request_ids=request_ids, choice=choice):
                    self._core.abort(request_ids, choice)
                case OffloadBlocks(hot_share=hot_share):
                    self._core.offload_cold(hot_share)
                case Shutdown():
                    return False
        return True


class _Nothing:
    """A program that computes nothing: every token is 1."""

    def __init__(self, before_step: Callable[[StepInput], None]) -> None:
        self._before_step = before_step

    def run(self, step: StepInput, output: StepOutput) -> None:
        self._before_step(step)
        output["header"][0] = step["header"][0]
        output["header"][3] = step.num_rows
        output["token_ids"][: step.num_rows] = 1


def _model(before_step: Callable[[StepInput], None]) -> LoadedModel:
    def make_executor(sizes: EngineSizes) -> Executor:
        return InlineExecutor(_Nothing(before_step))

    return LoadedModel(
        kv_shape=KVShape(
            groups=[KVGroupSpec((0,), None)],
            num_kv_heads=1,
            head_dim=KV_BYTES_PER_TOKEN // 4,
            max_model_len=MAX_MODEL_LEN,
        ),
        vocab_size=FakeTokenizer.vocab_size,
        eos_token_ids=FakeTokenizer.eos_token_ids,
        precision="none",
        weight_bytes=0,
        num_threads=1,
        max_steps_in_flight=1,
        make_executor=make_executor,
        close=lambda: None,
    )


def _features(step: StepInput) -> StepFeatures:
    num_seqs = step.num_seqs
    starts = step["query_start"][: num_seqs + 1]
    num_queries = starts[1:] - starts[:-1]
    contexts = step["seq_lens"][:num_seqs].astype("int64")
    num_decodes = int((num_queries == 1).sum())
    pairs = int((num_queries * contexts).sum())
    return StepFeatures(
        num_decodes, int(num_queries.sum()) - num_decodes, int(contexts.sum()), pairs
    )
