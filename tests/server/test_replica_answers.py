"""A server with two engines: healthy while one lives, and its figures by replica."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
from served_process import served_process

SCRIPT = Path(__file__).with_name("fake_serve.py")


def replicas(url: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = httpx.get(f"{url}/info").json()["replicas"]
    return listed


def samples(url: str, name: str) -> dict[str, float]:
    """Values of a metric by the number of its engine."""
    found = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith(f"{name}{{"):
            engine = line.split('engine="')[1].split('"')[0]
            found[engine] = float(line.rsplit(" ", 1)[1])
    return found


def test_a_server_of_two_replicas() -> None:
    with served_process(str(SCRIPT), "fake", "port=0", "data_parallel_size=2") as server:
        assert "2 replicas, each: context" in server.read_until("context").string
        url = server.url()
        assert [(r["replica"], r["state"]) for r in replicas(url)] == [(0, "ready"), (1, "ready")]
        for i in range(4):
            body = {"prompt": f"a{i}", "max_tokens": 4, "ignore_eos": True}
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        steps = samples(url, "takt_step_time_seconds_count")
        assert set(steps) == {"0", "1"}
        assert all(count >= 4 for count in steps.values())
        assert set(samples(url, "takt_cache_config_info")) == {"0", "1"}
        for name, total in (
            ("time_to_first_token_seconds_count", 4),
            ("inter_token_latency_seconds_count", 12),
            ("request_time_per_output_token_seconds_count", 4),
            ("e2e_request_latency_seconds_count", 4),
            ("prompt_tokens_total", 8),
            ("generation_tokens_total", 16),
        ):
            counts = samples(url, f"takt_{name}")
            assert set(counts) == {"0", "1"}, name
            assert all(counts.values()), name
            assert sum(counts.values()) == total, name
        os.kill(replicas(url)[1]["pid"], signal.SIGKILL)
        end = time.monotonic() + 200
        while replicas(url)[1]["num_restarts"] < 1:
            assert time.monotonic() < end
            assert httpx.get(f"{url}/health").status_code == 200
        while replicas(url)[1]["state"] != "ready":
            assert time.monotonic() < end
            assert httpx.get(f"{url}/health").status_code == 200
            body = {"prompt": "b", "max_tokens": 2}
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        assert samples(url, "takt_engine_restarts_total") == {"0": 0.0, "1": 1.0}
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
