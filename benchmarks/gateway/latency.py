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
from benchmarks.gateway.plain_client import PlainClient
from benchmarks.gateway.processes import Process, rig

PATH = "/v1/completions"
NUM_WARM_UP = 50
NUM_SYNCS = 200


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def added_latency(num_requests: int) -> bool:
    """Direct calls and calls through a gateway on each store, in random order in one run.

    One at a time: client, upstream, gateways and Redis share the machine, and what is asked for is
    what a gateway adds, not what queues before it. How busy the machine was is printed.
    """
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
        disk_ms = sync_ms(made.directory)
        busy = BusyShare()
        before_s = {name: target.cpu_s() for name, target in targets.items()}
        times = _measure(targets, num_requests)
        cpu_ms = {
            name: 1e3 * (target.cpu_s() - before_s[name]) / (num_requests + NUM_WARM_UP)
            for name, target in targets.items()
        }
        print(
            f"load: one request at a time, {len(targets) * num_requests / busy.seconds:.0f} a "
            f"second; all CPUs of the machine {100 * busy.share:.0f} % busy"
        )
    print(
        f"the disk under both stores: fdatasync after an append of 4 KiB, "
        f"P50 {percentile(disk_ms, 0.5):.2f} ms, P99 {percentile(disk_ms, 0.99):.2f} ms"
    )
    return all([_judge(name, times, cpu_ms[name]) for name in ("sqlite", "redis")])


def _judge(name: str, times: dict[str, list[float]], cpu_ms: float) -> bool:
    direct = times["direct"]
    added = {
        share: percentile(times[name], share) - percentile(direct, share) for share in (0.5, 0.99)
    }
    holds = added[0.5] <= 1 and added[0.99] <= 3
    print(
        f"added latency, {name}: P50 {added[0.5]:.2f} ms (bar 1), P99 {added[0.99]:.2f} ms "
        f"(bar 3): {'holds' if holds else 'MISSED'}; direct P50 {percentile(direct, 0.5):.2f}, "
        f"P99 {percentile(direct, 0.99):.2f} ms, {len(direct)} requests each; {cpu_ms:.2f} ms of "
        "CPU a request"
    )
    return holds


class BusyShare:
    """How busy all CPUs have been since this was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._idle, self._total = _cpu_ticks()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    @property
    def share(self) -> float:
        idle, total = _cpu_ticks()
        return 1 - (idle - self._idle) / max(1, total - self._total)


def _cpu_ticks() -> tuple[int, int]:
    """Idle ticks and all ticks since boot, of all CPUs."""
    ticks = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


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


def _measure(targets: dict[str, Process], num_requests: int) -> dict[str, list[float]]:
    work = [name for name in targets for _ in range(num_requests)]
    random.Random(5).shuffle(work)
    body = json.dumps({"prompt": "x" * 400, "max_tokens": 16}).encode()
    clients = {name: PlainClient(target.port, PATH) for name, target in targets.items()}
    times: dict[str, list[float]] = {name: [] for name in targets}
    for client in clients.values():
        for _ in range(NUM_WARM_UP):
            client.post(uuid.uuid4().hex, body)
    for name in work:
        times[name].append(clients[name].post(uuid.uuid4().hex, body))
    for client in clients.values():
        client.close()
    return times


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
