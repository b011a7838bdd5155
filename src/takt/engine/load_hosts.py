"""Loads a model whose ranks are all in other processes, on any hosts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from takt.config import EngineConfig
from takt.engine.all_reduce import resolve_all_reduce_dtype
from takt.engine.build import LoadedModel
from takt.engine.executor import Executor
from takt.engine.hosts_executor import HostsExecutor
from takt.engine.precision import resolve_policy
from takt.engine.rank_model import layout_of
from takt.engine.rank_wire import RankLoaded
from takt.engine.remote_ranks import RankWorkers, RemoteRanks
from takt.engine.sizing import EngineSizes, KVShape
from takt.engine.stage_division import divide_stages, pipeline_info, with_division
from takt.loading.base import Checkpoint
from takt.models.config import read_model_config
from takt.models.sharding import model_sizes
from takt.parallel.layout import ParallelLayout
from takt.parallel.plan import plan_shards
from takt.parallel.rank_kv import total_kv_heads
from takt.parallel.segment import SegmentPlan
from takt.types.precision import PrecisionInUse

_log = logging.getLogger(__name__)


def load_hosts(
    config: EngineConfig,
    checkpoint: Checkpoint,
    path: Path,
    *,
    make_workers: Callable[[ParallelLayout], RankWorkers],
    eos_token_ids: frozenset[int],
) -> LoadedModel:
    """Starts all ranks and waits until they have loaded; raises the error of whichever fails."""
    # Sizes that do not divide are found before anything is started.
    model = read_model_config(checkpoint)
    layout = layout_of(config)
    precision = PrecisionInUse(resolve_policy(config))
    model_parts = model_sizes(checkpoint, model, precision)
    plan_shards(model_parts, layout)
    division = divide_stages(config, model_parts)
    pipeline = pipeline_info(config, division)
    config = with_division(config, division)
    shard = plan_shards(model_parts, layout, config.parallel.stage_layers)[0]
    depth = config.parallel.max_pipeline_depth
    # Ranks are not pinned: any CPU of the host that is idle must do.
    all_reduce_dtype = resolve_all_reduce_dtype(config, model.hidden_size, None)
    ranks, loaded = _start(config, path, make_workers(layout))

    def make_executor(sizes: EngineSizes) -> Executor:
        plan = SegmentPlan.of(
            layout,
            sizes.limits,
            hidden_size=model.hidden_size,
            shard=shard,
            num_buffers=depth,
        )
        try:
            return HostsExecutor(ranks, sizes, plan, all_reduce_dtype)
        except BaseException:
            ranks.close()
            raise

    return LoadedModel(
        kv_shape=KVShape(
            groups=model.kv_groups(),
            num_kv_heads=total_kv_heads(shard),
            head_dim=model.head_dim,
            max_model_len=model.max_position_embeddings,
        ),
        vocab_size=model.vocab_size,
        eos_token_ids=eos_token_ids,
        precision=loaded[0].precision,
        phases_differ=precision.policy.phases_differ,
        weight_bytes=sum(one.weight_bytes for one in loaded),
        num_threads=sum(ranks.num_threads),
        max_steps_in_flight=depth,
        make_executor=make_executor,
        close=ranks.close,
        num_micro_batches=depth,
        first_depth=ranks.num_stages_at_once,
        sentinels=ranks.sentinels,
        ending=ranks.cause,
        pipeline=pipeline,
        available_bytes=ranks.room_bytes(loaded),
    )


def _start(
    config: EngineConfig, path: Path, workers: RankWorkers
) -> tuple[RemoteRanks, list[RankLoaded]]:
    try:
        ranks = RemoteRanks(workers, config)
        loaded = ranks.load(path)
    except BaseException:
        workers.close()
        raise
    _log.info("hosts of the ranks: %s", list(ranks.host_map.hosts))
    _log.debug("bytes read by rank: %s", [one.num_bytes_read for one in loaded])
    return ranks, loaded
