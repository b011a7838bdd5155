"""Metrics that no request moves."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from takt.engine.messages import StepStats
from takt.observe.metrics import Metrics


def test_the_cache_is_described_as_the_engine_last_started_with_it() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "m")
    metrics.engines[0].set_cache("bfloat16", 16, [10], [1024])
    metrics.engines[0].set_cache("int8", 16, [100, 20], [3168, 1056])
    lines = generate_latest(registry).decode().splitlines()
    (line,) = [line for line in lines if line.startswith("takt_cache_config_info{")]
    assert line == (
        'takt_cache_config_info{block_bytes="3168,1056",block_size="16",cache_dtype="int8",'
        'engine="0",model_name="m",num_blocks="100,20"} 1.0'
    )


def test_the_depth_of_a_pipeline_and_its_changes_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "m")
    for depths in ((2, 2, 3), (3, 2)):
        for depth in depths:
            stats = StepStats(*[0] * 17, [], 0, pipeline_depth=depth, kv_unwritten_permille=275)
            metrics.observe_step(stats)
        metrics.settle()
    labels = {"model_name": "m", "engine": "0"}
    values = {
        name: registry.get_sample_value(f"takt_{name}", labels)
        for name in ("pipeline_depth", "pipeline_depth_changes_total", "kv_cache_unwritten_perc")
    }
    assert values == {
        "pipeline_depth": 2,
        "pipeline_depth_changes_total": 2,
        "kv_cache_unwritten_perc": 0.275,
    }
