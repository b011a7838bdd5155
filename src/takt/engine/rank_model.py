"""One rank's part of a model: loaded, then made into a program; the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from takt.config import EngineConfig
from takt.engine.precision import resolve_policy
from takt.engine.rank_wire import RankSizes
from takt.errors import ConfigError
from takt.loading.base import Checkpoint
from takt.loading.checkpoint import open_checkpoint
from takt.models.config import ModelConfig, read_model_config
from takt.models.decoder import Decoder, load_decoder
from takt.models.sharding import model_sizes
from takt.ops.base import Ops, Program
from takt.ops.create import create_ops
from takt.parallel.layout import ParallelLayout
from takt.parallel.plan import plan_shards
from takt.parallel.rank_kv import rank_kv_spec
from takt.parallel.segment import Segment, SegmentPlan
from takt.parallel.shard import Shard
from takt.types.precision import PrecisionInUse
from takt.types.step import StepInput, StepOutput


def layout_of(config: EngineConfig) -> ParallelLayout:
    parallel = config.parallel
    return ParallelLayout(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)


class RankModel:
    """Weights of one rank in memory; `bind` gives it its KV pool, links and program."""

    def __init__(
        self,
        config: EngineConfig,
        path: Path,
        rank: int,
        num_threads: int,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        num_peers: int | None = None,
    ) -> None:
        """Reads and packs the rank's shard; raises `TaktError`s.

        `num_peers` other ranks share its CPUs: all of them, if not given.
        """
        self._config = config
        self.layout = layout_of(config)
        self.rank = rank
        self.precision = PrecisionInUse(resolve_policy(config))
        if num_peers is None:
            num_peers = self.layout.num_ranks - 1
        checkpoint = open_checkpoint(path, config.model.load_format)
        try:
            self.model: ModelConfig = read_model_config(checkpoint)
            self.shard: Shard = self._shard(checkpoint)
            self.ops: Ops = create_ops(
                config.model.backend,
                num_threads,
                num_peers=num_peers,
                int8_tokens=self.precision.policy.int8_tokens,
            )
            self.decoder: Decoder = load_decoder(
                checkpoint,
                self.model,
                self.ops,
                precision=self.precision,
                shard=self.shard,
                on_progress=on_progress,
            )
            self.num_bytes_read = checkpoint.num_bytes_read
        finally:
            checkpoint.close()

    def _shard(self, checkpoint: Checkpoint) -> Shard:
        sizes = model_sizes(checkpoint, self.model, self.precision)
        return plan_shards(sizes, self.layout, self._config.parallel.stage_layers)[self.rank]

    @property
    def weight_bytes(self) -> int:
        return self.ops.weight_bytes

    @property
    def spin_ns(self) -> int:
        """How long this rank's waits spin before they sleep."""
        return self.ops.spin_ns

    def segment_plan(self, sizes: RankSizes) -> SegmentPlan:
        return SegmentPlan.of(
            self.layout,
            sizes.limits,
            hidden_size=self.model.hidden_size,
            shard=self.shard,
            num_buffers=self._config.parallel.max_pipeline_depth,
        )

    def bind(self, sizes: RankSizes, segment: Segment) -> RankProgram:
        """Makes the KV pool and captures the program; raises `ConfigError` if there is no room."""
        self.ops.allocate_kv(rank_kv_spec(sizes.kv_spec(), self.shard), sizes.num_blocks)
        self.ops.connect(segment.links(self.rank, self.spin_ns, sizes.all_reduce_dtype))
        program = self.ops.program(
            self.decoder.forward,
            sizes.limits,
            max_position=sizes.max_position,
            eager=self._config.model.enforce_eager,
        )
        return RankProgram(self, sizes, segment, program)

    def close(self) -> None:
        self.ops.close()


class RankProgram:
    """A rank ready for steps, which it finds in shared memory."""

    def __init__(
        self, model: RankModel, sizes: RankSizes, segment: Segment, program: Program
    ) -> None:
        self._program = program
        self._order: np.ndarray = segment.order
        self._submitted, self._completed = segment.signals(model.spin_ns)
        self._samples = model.rank == model.layout.sampling_rank
        buffers = range(segment.plan.num_buffers)
        self.steps = [StepInput(sizes.limits, segment.input_buffer(i)) for i in buffers]
        self.outputs = [StepOutput(sizes.limits, segment.output_buffer(i)) for i in buffers]
        # Ranks that do not sample leave the step's output alone.
        self._unused = StepOutput(sizes.limits)

    def run(self, number: int) -> None:
        """Runs step `number`, counted from 1; raises `EngineDeadError` if another rank is gone."""
        buffer = int(self._order[number % len(self._order)])
        if self._samples:
            self._program.run(self.steps[buffer], self.outputs[buffer])
            self._completed.post(number)
        else:
            self._program.run(self.steps[buffer], self._unused)

    def serve(self) -> None:
        """Runs steps as they are submitted, until the segment is aborted."""
        number = 1
        while self._submitted.wait(number):
            self.run(number)
            number += 1


def rank_threads(config: EngineConfig, num_cpus: int, num_ranks: int) -> int:
    """Threads of each of a host's ranks: those asked for, or an equal share of its CPUs."""
    if config.model.num_threads is not None:
        return config.model.num_threads
    return max(1, num_cpus // num_ranks)


def check_num_ranks(config: EngineConfig, num_cpus: int, num_ranks: int) -> str | None:
    """A warning where a host's ranks take turns; raises `ConfigError` instead with --strict."""
    if num_ranks <= num_cpus or num_ranks == 1:
        return None
    sentence = (
        f"{num_ranks} ranks share {num_cpus} CPUs: they take turns, so a step takes at least "
        f"{num_ranks / num_cpus:g} times as long as with a CPU for each rank, and each hand-over "
        "between ranks waits for the scheduler"
    )
    if config.parallel.strict:
        raise ConfigError(f"{sentence}; --strict refuses this: ask for at most {num_cpus} ranks")
    return sentence
