"""Profiles steps of a real engine core: decodes at a context, or a prompt in one step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from takt.clock import Clock
from takt.config import EngineConfig
from takt.engine.build import LoadedModel, build_core
from takt.engine.executor import Executor, InlineExecutor
from takt.engine.messages import AddRequest, StepStats
from takt.engine.sizing import EngineSizes
from takt.errors import ConfigError, InvariantError
from takt.models.layer_costs import CONTEXT, ROWS
from takt.observe.step_profile import ProfiledStep, StepProfile
from takt.ops.native.labels import label_instructions
from takt.ops.native.program import NativeProgram
from takt.parallel.stages import LayerCosts
from takt.types.instruction import StepTimes, StepWork
from takt.types.sampling_params import SamplingParams
from takt.types.step import StepInput, StepLimits, StepOutput

_log = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]

_WARM_UP_STEPS = 5
_STEPS_OF_LAYERS = 20
_MOST_EXCESS = 0.5
"""A quiet machine's is some percent; twice the least time and more where threads take turns."""
_LEAST_LEN_OF_LAYERS = 128
"""A quarter of it as context leaves room for these steps and for the starts of all sequences."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """`batch_size` sequences, each with about `context` tokens before the step."""

    batch_size: int
    context: int


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """One prompt of `num_tokens`, computed in one step."""

    num_tokens: int


class ProfilingExecutor:
    """Runs steps inline and keeps the times of the last one."""

    max_steps_in_flight = 1
    runs_native = True

    def __init__(self, program: NativeProgram) -> None:
        self.program = program
        self.last: StepTimes | None = None
        self._inline = InlineExecutor(program)
        program.set_profiling(True)

    def step_memory(self, limits: StepLimits, index: int) -> tuple[StepInput, StepOutput]:
        return self._inline.step_memory(limits, index)

    def submit(self, step: StepInput, output: StepOutput) -> None:
        self.program.run(step, output)
        self.last = self.program.read_profile()

    def wait(self) -> None:
        pass


class Profiler:
    """An engine core of `model` whose steps are profiled. `close` ends it."""

    def __init__(self, config: EngineConfig, model: LoadedModel, clock: Clock) -> None:
        """Raises `ConfigError` for engines that replay no native program."""
        self._executors: list[ProfilingExecutor] = []
        self._core = build_core(
            config, replace(model, make_executor=self._spy(model.make_executor)), clock
        )
        (executor,) = self._executors
        self._executor = executor
        groups = model.kv_shape.groups
        windows = {layer: group.window for group in groups for layer in group.layers}
        self._labels = label_instructions(
            executor.program.spans,
            executor.program.num_instructions,
            [windows[layer] for layer in sorted(windows)],
        )
        kv = self._core.sizes.kv
        num_layers = len(windows)
        block_bytes = sum(kv.block_bytes(g) for g in range(len(groups)))
        self._kv_token_bytes = block_bytes // kv.block_size // max(1, num_layers)
        self._max_model_len = self._core.sizes.max_model_len
        self._max_num_batched_tokens = config.scheduler.max_num_batched_tokens
        self._num_requests = 0

    def close(self) -> None:
        self._core.close()

    def decode(self, shape: DecodeShape, num_steps: int, on_progress: OnProgress) -> StepProfile:
        """Steps that decode all sequences; contexts grow by a token a step from `context` on."""
        # The first sequences decode while prompts of the last ones are computed.
        num_starting = -(-shape.batch_size * shape.context // self._max_num_batched_tokens)
        num_starting += shape.batch_size
        max_tokens = _WARM_UP_STEPS + num_steps + num_starting + 1
        self._check_context(shape.context + max_tokens, "--context")
        for index in range(shape.batch_size):
            self._add(shape.context, max_tokens, index)
        steps: list[ProfiledStep] = []
        num_seen = 0
        while self._core.has_work and len(steps) < num_steps:
            stats = self._step()
            if stats is None or stats.num_decode_seqs != shape.batch_size:
                continue
            if stats.num_prefill_tokens:
                continue
            num_seen += 1
            if num_seen > _WARM_UP_STEPS:
                steps.append(self._profiled(stats, _decode_work(stats)))
                on_progress("decode steps", len(steps), num_steps)
        self._abort_all()
        return StepProfile(self._labels, steps, self._kv_token_bytes)

    def layer_costs(self, on_progress: OnProgress) -> LayerCosts | None:
        """Seconds of layers and head in steps of the shape that `modelled_costs` takes, or the
        nearest that the engine has room for; None if there is too little, or the machine is busy.
        """
        sizes = self._core.sizes
        if self._max_model_len < _LEAST_LEN_OF_LAYERS:
            return None
        context = min(CONTEXT, self._max_model_len // 4)
        batch_size = min(ROWS, sizes.limits.max_num_seqs, sizes.num_kv_tokens // (2 * context))
        shape = DecodeShape(max(1, batch_size), context)
        seconds = self.decode(shape, _STEPS_OF_LAYERS, on_progress).layer_seconds()
        if seconds.excess > _MOST_EXCESS:
            _log.warning(
                "layers took very unequal times, so that stages would be divided badly by them: "
                "they are not kept; profile again while the machine is quiet"
            )
            return None
        return LayerCosts(tuple(seconds.layers), seconds.before, seconds.after)

    def prefill(self, shape: PrefillShape, num_steps: int, on_progress: OnProgress) -> StepProfile:
        """Prompts one after the other, each whole in a step of its own."""
        self._check_context(shape.num_tokens + 1, "--prefill-tokens")
        steps: list[ProfiledStep] = []
        for index in range(num_steps + 1):
            self._add(shape.num_tokens, 1, index)
            while self._core.has_work:
                stats = self._step()
                if stats is None or not stats.num_prefill_tokens:
                    continue
                if stats.num_prefill_tokens != shape.num_tokens:
                    raise InvariantError("the prompt was not computed in one step")
                if index > 0:  # the first one warms up
                    work = StepWork(((0, shape.num_tokens),), num_rows=1)
                    steps.append(self._profiled(stats, work))
                    on_progress("prefill steps", len(steps), num_steps)
        return StepProfile(self._labels, steps, self._kv_token_bytes)

    def _spy(self, make: Callable[[EngineSizes], Executor]) -> Callable[[EngineSizes], Executor]:
        def make_executor(sizes: EngineSizes) -> Executor:
            program = getattr(make(sizes), "program", None)
            if not isinstance(program, NativeProgram):
                raise ConfigError(
                    "only captured native programs are profiled: leave out --backend torch, "
                    "--enforce-eager and parallel sizes"
                )
            self._executors.append(ProfilingExecutor(program))
            return self._executors[-1]

        return make_executor

    def _step(self) -> StepStats | None:
        result = self._core.step()
        for output in result.outputs:  # errors are never plain tokens
            if output.error is not None:
                raise ConfigError(output.error)
        return result.stats

    def _add(self, num_prompt_tokens: int, max_tokens: int, index: int) -> None:
        vocab_size = self._core.rules.vocab_size
        prompt = [(index * 7919 + i * 31 + 11) % vocab_size for i in range(num_prompt_tokens)]
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self._num_requests += 1
        self._core.add(AddRequest(f"profile-{self._num_requests}", prompt, sampling))

    def _abort_all(self) -> None:
        self._core.abort(f"profile-{n + 1}" for n in range(self._num_requests))
        while self._core.has_work:
            self._core.step()

    def _profiled(self, stats: StepStats, work: StepWork) -> ProfiledStep:
        times = self._executor.last
        if times is None:
            raise InvariantError("a step ran that was not profiled")
        return ProfiledStep(
            times=times,
            work=work,
            schedule_ns=stats.run_start_ns - stats.schedule_start_ns,
            update_ns=stats.update_end_ns - stats.run_end_ns,
            num_redone_tiles=stats.num_redone_tiles,
        )

    def _check_context(self, needed: int, flag: str) -> None:
        if needed > self._max_model_len:
            raise ConfigError(
                f"{flag} needs {needed} positions with the steps that are profiled; the engine has "
                f"{self._max_model_len}: ask for less, or raise --max-model-len"
            )


def _decode_work(stats: StepStats) -> StepWork:
    """Sequences are alike within the steps between their starts, so each has the mean context."""
    count = stats.num_decode_seqs
    context = stats.num_kv_tokens_read // count
    return StepWork(((context - 1, 1),) * count, num_rows=count)
