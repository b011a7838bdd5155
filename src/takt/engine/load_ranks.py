"""Loads a model that several ranks share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from takt.config import EngineConfig
from takt.engine.all_reduce import resolve_all_reduce_dtype
from takt.engine.build import LoadedModel
from takt.engine.executor import Executor
from takt.engine.precision import resolve_policy
from takt.engine.rank_executor import RankExecutor
from takt.engine.rank_group import RankGroup, RankProcesses, RankThreads
from takt.engine.rank_model import RankModel, check_num_ranks, layout_of, rank_threads
from takt.engine.rank_pinning import PinnedCaller, plan_rank_cpus
from takt.engine.rank_wire import RankLoaded
from takt.engine.sizing import EngineSizes, KVShape
from takt.engine.stage_division import divide_stages, pipeline_info, with_division
from takt.loading.base import Checkpoint
from takt.models.config import read_model_config
from takt.models.sharding import model_sizes
from takt.parallel.cpu_topology import read_cpu_topology
from takt.parallel.pinning import RankCpus
from takt.parallel.plan import plan_shards
from takt.parallel.rank_kv import total_kv_heads
from takt.types.precision import PrecisionInUse

_log = logging.getLogger(__name__)


def load_ranks(
    config: EngineConfig,
    checkpoint: Checkpoint,
    path: Path,
    *,
    num_cpus: int,
    eos_token_ids: frozenset[int],
    on_progress: Callable[[int, int], None] | None,
) -> LoadedModel:
    """Starts the other ranks, loads rank 0's shard meanwhile, and waits for all; raises the error
    of whichever fails."""
    # Sizes that do not divide are found before anything is started.
    model_config = read_model_config(checkpoint)
    precision = PrecisionInUse(resolve_policy(config))
    sizes = model_sizes(checkpoint, model_config, precision)
    plan_shards(sizes, layout_of(config))
    division = divide_stages(config, sizes)
    pipeline = pipeline_info(config, division)
    if pipeline is not None:
        _log.info("layers of each stage (%s): %s", pipeline.costs, pipeline.stage_layers)
    config = with_division(config, division)
    num_ranks = config.parallel.num_ranks
    warning = check_num_ranks(config, num_cpus, num_ranks)
    if warning is not None:
        _log.warning(warning)
    ranks = _Ranks(config, path, model_config.hidden_size, num_cpus, on_progress)
    model, loaded = ranks.model, ranks.loaded
    _log.debug("bytes read by rank: %s", [one.num_bytes_read for one in loaded])
    layout = model.layout
    return LoadedModel(
        kv_shape=KVShape(
            groups=model_config.kv_groups(),
            # Ranks share the host's memory: the pool's size is that of all of them.
            num_kv_heads=total_kv_heads(model.shard),
            head_dim=model_config.head_dim,
            max_model_len=model_config.max_position_embeddings,
        ),
        vocab_size=model_config.vocab_size,
        eos_token_ids=eos_token_ids,
        precision=model.precision.describe(),
        phases_differ=precision.policy.phases_differ,
        weight_bytes=sum(one.weight_bytes for one in loaded),
        num_threads=ranks.num_threads * layout.num_ranks,
        max_steps_in_flight=config.parallel.max_pipeline_depth,
        make_executor=ranks.make_executor,
        close=ranks.close,
        num_micro_batches=config.parallel.max_pipeline_depth,
        # Stages that can work at the same time: the others would wait for a CPU.
        first_depth=max(
            1, min(layout.num_stages, num_cpus // (layout.tensor_size * ranks.num_threads))
        ),
        sentinels=ranks.others.sentinels,
        ending=ranks.others.cause,
        pipeline=pipeline,
    )


class _Ranks:
    """All ranks, their weights in memory: rank 0 on the caller's thread, the others elsewhere."""

    def __init__(
        self,
        config: EngineConfig,
        path: Path,
        hidden_size: int,
        num_cpus: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.num_threads = rank_threads(config, num_cpus, config.parallel.num_ranks)
        cpus = plan_rank_cpus(config, self.num_threads, num_cpus, read_cpu_topology())
        # While no rank runs yet, since it may measure.
        self._all_reduce_dtype = resolve_all_reduce_dtype(config, hidden_size, cpus)
        self.others = _start_others(config, path, self.num_threads, cpus)
        self._caller = PinnedCaller(cpus)
        try:
            self.model, self.loaded = _load_all(
                config, path, self.num_threads, self.others, on_progress, self._caller
            )
        except BaseException:
            self._caller.release()
            raise
        self._executor: RankExecutor | None = None

    def make_executor(self, sizes: EngineSizes) -> Executor:
        try:
            self._executor = RankExecutor(self.model, self.others, sizes, self._all_reduce_dtype)
        except BaseException:
            self.others.close()
            self._caller.release()
            raise
        return self._executor

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        self.others.close()
        self.model.close()
        self._caller.release()


def _start_others(
    config: EngineConfig, path: Path, num_threads: int, ranks: Sequence[RankCpus] | None
) -> RankGroup:
    if config.parallel.distributed_executor_backend == "inproc":
        return RankThreads(config, path, num_threads)
    level = logging.getLogger().getEffectiveLevel()
    return RankProcesses(config, path, num_threads, level, ranks)


def _load_all(
    config: EngineConfig,
    path: Path,
    num_threads: int,
    others: RankGroup,
    on_progress: Callable[[int, int], None] | None,
    caller: PinnedCaller,
) -> tuple[RankModel, list[RankLoaded]]:
    """Rank 0's model, and what every rank says of its own; the others end if any fails."""
    try:
        num_peers = 0 if caller.is_pinned else None
        model = RankModel(config, path, 0, num_threads, on_progress, num_peers=num_peers)
        mine = RankLoaded(model.num_bytes_read, model.weight_bytes)
        return model, [mine, *others.wait_loaded()]
    except BaseException:
        others.close()
        raise
