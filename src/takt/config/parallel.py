"""Ranks and replicas."""

from __future__ import annotations

from dataclasses import dataclass

from takt.config.option import check_choices, check_positive, is_count, option
from takt.errors import ConfigError

_DEEPEST = 4
"""Steps in flight for each stage, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """Ranks that share a model, and replicas of it."""

    tensor_parallel_size: int = option(
        1, "Ranks that share each layer; sizes that work depend on the model."
    )
    pipeline_parallel_size: int = option(
        1, "Stages that layers are divided over: more memory and throughput, not a faster token."
    )
    pipeline_depth: str = option(
        "auto",
        "Steps in flight of a pipeline: so many micro-batches share its stages. auto follows the "
        "load, between 1 and one more than there are stages.",
    )
    pp_layer_partition: str = option(
        "auto",
        "Layers of each stage, such as 8,8,8,6. auto makes the slowest stage as fast as can be, by "
        "the time that layers and head were measured to take (takt profile), or by a model of it.",
    )
    data_parallel_size: int = option(
        1,
        "Replicas of the model behind one server, each an engine with tensor-parallel groups and "
        "stages of its own; they share CPUs and KV memory evenly.",
    )
    cooperative_offload: bool = option(
        True, "Have a replica whose KV pool is nearly full give waiting requests to one with room."
    )
    distributed_executor_backend: str = option(
        "auto",
        "uni is one process for one rank, mp a process for each rank, inproc a thread for each "
        "(for tests), ray an actor for each, on one host or several. auto is uni for one rank and "
        "mp for more.",
        choices=("auto", "uni", "mp", "inproc", "ray"),
    )
    all_reduce_dtype: str = option(
        "float32",
        "What tensor-parallel ranks exchange to sum their parts: float32, or rounded values: "
        "bfloat16, float16, int8 (groups of 32 with a scale). auto measures them at each start and "
        "takes a rounded one only if it is faster for every size of step.",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
    )
    strict: bool = option(False, "Refuse what would only warn, such as more ranks than CPUs.")

    def __post_init__(self) -> None:
        check_choices(self)
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        check_positive(self, *sizes)
        for name in ("pipeline_depth", "pp_layer_partition"):
            object.__setattr__(self, name, str(getattr(self, name)))  # numbers will do in Python
        self._check_pipeline()
        if self.num_ranks > 1 and self.distributed_executor_backend == "uni":
            raise ConfigError(
                f"--distributed-executor-backend uni runs one rank, not {self.num_ranks}: use mp"
            )

    @property
    def num_ranks(self) -> int:
        """Of each replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def max_pipeline_depth(self) -> int:
        """Most steps that may be in flight."""
        if self.pipeline_depth != "auto":
            return int(self.pipeline_depth)
        stages = self.pipeline_parallel_size
        return stages + 1 if stages > 1 else 1

    @property
    def stage_layers(self) -> tuple[int, ...] | None:
        """Number of layers of each stage, if they are given."""
        if self.pp_layer_partition == "auto":
            return None
        return tuple(int(count) for count in self.pp_layer_partition.split(","))

    def _check_pipeline(self) -> None:
        stages, depth = self.pipeline_parallel_size, self.pipeline_depth
        # More only wait in line: every stage has several steps before it then.
        most = _DEEPEST * stages if stages > 1 else 1
        if depth != "auto" and not (is_count(depth) and int(depth) <= most):
            why = "" if stages > 1 else ", since there is one stage"
            raise ConfigError(
                f"--pipeline-depth must be auto or a number from 1 to {most}{why}, got {depth!r}"
            )
        partition = self.pp_layer_partition
        counts = partition.split(",")
        if partition != "auto" and (len(counts) != stages or not all(map(is_count, counts))):
            raise ConfigError(
                f"--pp-layer-partition must be auto or {stages} numbers from 1 on, separated by "
                f"commas: one for each stage of --pipeline-parallel-size; got {partition!r}"
            )
