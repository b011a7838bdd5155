"""Which layers each stage of a pipeline gets: as asked, or by costs measured or modelled."""

from __future__ import annotations

from dataclasses import replace

from takt.config import EngineConfig
from takt.engine.layer_cost_file import layer_cost_path, read_layer_costs
from takt.engine.messages import PipelineInfo
from takt.parallel.plan import ModelSizes, plan_stages
from takt.parallel.stages import StageDivision


def divide_stages(config: EngineConfig, sizes: ModelSizes) -> StageDivision:
    """Raises `ConfigError` if the model has not the layers that were asked for.

    Measured costs are those of `takt profile`; `sizes` has modelled ones.
    """
    asked = config.parallel.stage_layers
    measured = read_layer_costs(layer_cost_path(config), len(sizes.costs.layers))
    if measured is not None:
        sizes = replace(sizes, costs=measured)
    spans = plan_stages(sizes, config.parallel.pipeline_parallel_size, asked)
    source = "modelled" if measured is None else "measured"
    return StageDivision(spans, sizes.costs, "given" if asked is not None else source)


def with_division(config: EngineConfig, division: StageDivision) -> EngineConfig:
    """The configuration for all ranks: whatever each finds in the cache, they hold these layers."""
    partition = ",".join(str(span.size) for span in division.spans)
    return replace(config, parallel=replace(config.parallel, pp_layer_partition=partition))


def pipeline_info(config: EngineConfig, division: StageDivision) -> PipelineInfo | None:
    """None for a single stage."""
    if len(division.spans) == 1:
        return None
    return PipelineInfo(
        stage_layers=[span.size for span in division.spans],
        stage_shares=[round(share, 4) for share in division.shares],
        costs=division.source,
        depth=config.parallel.pipeline_depth,
    )
