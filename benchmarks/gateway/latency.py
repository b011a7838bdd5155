"""What the gateway adds to a request's latency, and what a storm of retries comes to."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import uuid
from pathlib import Path

import aiohttp
from benchmarks.gateway.processes import Process, rig

PATH = "/v1/completions"
NUM_WARM_UP = 50
NUM_SYNCS = 200


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def added_latency(num_requests: int, num_clients: int) -> bool:
    """Direct calls and calls through a gateway on each store, in random order in one run."""
    with rig() as made:
        upstream = made.upstream("--delay-ms", "10")
        redis = made.redis()
        for process in (upstream, redis):
            process.start()
        targets = {"direct": upstream}
        for name, url in (
            ("sqlite", f"sqlite:///{made.directory}/store.db"),
            ("redis", f"redis://127.0.0.1:{redis.port}/0"),
        ):
            targets[name] = made.gateway(url, "--upstream", upstream.url)
            targets[name].start()
        before_s = {name: target.cpu_s() for name, target in targets.items()}
        disk_ms = sync_ms(made.directory)
        times = await _measure(targets, num_requests, num_clients)
        cpu_ms = {
            name: 1e3 * (target.cpu_s() - before_s[name]) / (num_requests + NUM_WARM_UP)
            for name, target in targets.items()
        }
    print(
        f"the disk under both stores: fdatasync after an append of 4 KiB, "
        f"P50 {percentile(disk_ms, 0.5):.2f} ms, P99 {percentile(disk_ms, 0.99):.2f} ms"
    )
    holds = True
    for name in ("sqlite", "redis"):
        added = {
            share: percentile(times[name], share) - percentile(times["direct"], share)
            for share in (0.5, 0.99)
        }
        print(
            f"added latency, {name}: P50 {added[0.5]:.2f} ms (bar 1), P99 {added[0.99]:.2f} ms "
            f"(bar 3); direct P50 {percentile(times['direct'], 0.5):.2f}, "
            f"P99 {percentile(times['direct'], 0.99):.2f} ms, {num_requests} requests each, "
            f"{num_clients} at a time; {cpu_ms[name]:.2f} ms of CPU a request"
        )
        holds = holds and added[0.5] <= 1 and added[0.99] <= 3
    return holds


def sync_ms(directory: Path) -> list[float]:
    """What the stores' promise costs here at least; each request waits for one such call or two."""
    times = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(NUM_SYNCS):
            file.write(bytes(4096))
            begin = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter_ns() - begin) / 1e6)
    return times


async def _measure(
    targets: dict[str, Process], num_requests: int, num_clients: int
) -> dict[str, list[float]]:
    rng = random.Random(5)
    work = [name for name in targets for _ in range(num_requests)]
    rng.shuffle(work)
    times: dict[str, list[float]] = {name: [] for name in targets}
    jobs = iter(work)
    async with aiohttp.ClientSession() as session:
        for target in targets.values():
            for _ in range(NUM_WARM_UP):
                await _call(session, target)

        async def client() -> None:
            for name in jobs:
                times[name].append(await _call(session, targets[name]))

        await asyncio.gather(*(client() for _ in range(num_clients)))
    return times


async def _call(session: aiohttp.ClientSession, target: Process) -> float:
    """Milliseconds."""
    body = json.dumps({"prompt": "x" * 400, "max_tokens": 16}).encode()
    begin = time.perf_counter_ns()
    async with session.post(
        target.url + PATH, data=body, headers={"Idempotency-Key": uuid.uuid4().hex}
    ) as response:
        await response.read()
        assert response.status == 200, response.status
    return (time.perf_counter_ns() - begin) / 1e6


async def storm(num_requests: int, num_copies: int) -> bool:
    """Every request sent several times at once, over two gateways: one execution each."""
    with rig() as made:
        upstream = made.upstream("--delay-ms", "30")
        upstream.start()
        url = f"sqlite:///{made.directory}/store.db"
        gateways = [made.gateway(url, "--upstream", upstream.url) for _ in range(2)]
        for gateway in gateways:
            gateway.start()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200)) as session:

            async def ask(number: int, copy: int) -> bytes:
                async with session.post(
                    gateways[copy % 2].url + PATH,
                    json={"prompt": str(number)},
                    headers={"Idempotency-Key": f"storm{number}"},
                ) as response:
                    return await response.read()

            answers = await asyncio.gather(
                *(ask(number, copy) for number in range(num_requests) for copy in range(num_copies))
            )
            async with session.get(upstream.url + "/executions") as response:
                executions = await response.json()
    groups = [set(answers[i : i + num_copies]) for i in range(0, len(answers), num_copies)]
    num_equal = sum(len(group) == 1 for group in groups)
    print(
        f"storm, each of {num_requests} requests sent {num_copies} times: "
        f"{sum(executions.values())} executions, {num_equal} with {num_copies} equal answers"
    )
    return num_equal == num_requests and sum(executions.values()) == num_requests
