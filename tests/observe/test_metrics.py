"""Metrics that no request moves."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from takt.observe.metrics import Metrics


def test_the_cache_is_described_as_the_engine_last_started_with_it() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "m")
    metrics.set_cache("bfloat16", 16, [10], [1024])
    metrics.set_cache("int8", 16, [100, 20], [3168, 1056])
    lines = generate_latest(registry).decode().splitlines()
    (line,) = [line for line in lines if line.startswith("takt_cache_config_info{")]
    assert line == (
        'takt_cache_config_info{block_bytes="3168,1056",block_size="16",cache_dtype="int8",'
        'engine="0",model_name="m",num_blocks="100,20"} 1.0'
    )
