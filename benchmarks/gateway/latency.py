"""What the gateway adds to a request's latency, beside what a relay that only relays adds."""

from __future__ import annotations

import json
import os
import random
import uuid
from dataclasses import dataclass

from benchmarks.gateway.machine import BusyShare, percentile, redis_set_ms, sync_ms
from benchmarks.gateway.plain_client import PlainClient
from benchmarks.gateway.processes import Process, Rig, rig

PATH = "/v1/completions"
UPSTREAM_MS = 10
NUM_WARM_UP = 50

NUM_IN_BLOCK = 250
"""Requests to one target before the next one's turn. The first of a turn finds a process that was
left alone for the turns of four others: fewer than one in a hundred, that no P99 be theirs."""

STORES = ("sqlite", "redis")
NUM_DURABLE = {"sqlite": 1, "redis": 1}
"""Durable writes that a request waits for: its answer. Its claim need not be one, under `retry`."""

FLOORS = {"relay in C": "c_relay", "relay in Python": "relay"}


@dataclass(frozen=True, slots=True)
class Cpus:
    """Which CPUs what is measured and everything else may run on; None is all of them."""

    target: set[int] | None
    others: set[int] | None

    @classmethod
    def of(cls, placement: str) -> Cpus:
        """`own`: the target has a CPU to itself; `shared`: as the kernel likes."""
        if placement == "shared":
            return cls(None, None)
        all_cpus = sorted(os.sched_getaffinity(0))
        if len(all_cpus) < 2:
            raise SystemExit("--cpus own needs two CPUs")
        return cls({all_cpus[-1]}, set(all_cpus[:-1]))


def added_latency(num_requests: int, placement: str) -> bool:
    """Direct calls, calls through relays that only relay, and calls through a gateway on each
    store, in turns in one run.

    One request at a time: client, upstream, gateways and Redis share the machine, and what is asked
    for is what a gateway adds, not what queues before it. The relays' times are those of two more
    wake-ups and four more system calls, which no gateway avoids.
    """
    cpus = Cpus.of(placement)
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus.others or own)
    try:
        with rig() as made:
            redis = made.redis()
            redis.start(cpus=cpus.others)
            floors = {
                "sqlite": sync_ms(made.directory, gap_ms=UPSTREAM_MS),
                "redis": redis_set_ms(redis.port, gap_ms=UPSTREAM_MS),
            }
            targets = _start(made, cpus, redis)
            busy = BusyShare()
            before_s = {name: target.cpu_s() for name, target in targets.items()}
            times = _measure(targets, num_requests)
            cpu_ms = {
                name: 1e3 * (target.cpu_s() - before_s[name]) / (num_requests + NUM_WARM_UP)
                for name, target in targets.items()
            }
            rate = len(targets) * num_requests / busy.seconds
            busy_share = busy.share
    finally:
        os.sched_setaffinity(0, own)
    print(
        f"load: one request at a time, {rate:.0f} a second, {NUM_IN_BLOCK} to each in turn; "
        f"CPUs {placement} ({len(own)} in all, {100 * busy_share:.0f} % busy)"
    )
    for name, what in (("sqlite", "a write and its sync"), ("redis", "a bare SET, synced")):
        p50, p99 = percentile(floors[name], 0.5), percentile(floors[name], 0.99)
        print(f"{what}, {UPSTREAM_MS} ms apart: P50 {p50:.2f}, P99 {p99:.2f} ms")
    direct = times["direct"]
    print(f"direct: P50 {percentile(direct, 0.5):.2f}, P99 {percentile(direct, 0.99):.2f} ms")
    for name in FLOORS:
        print(f"added latency, {name}: {_shown(_added(times, name))}, {cpu_ms[name]:.2f} ms of CPU")
    return all(
        [
            _judge(name, times, NUM_DURABLE[name] * percentile(floors[name], 0.5), cpu_ms[name])
            for name in STORES
        ]
    )


def _start(made: Rig, cpus: Cpus, redis: Process) -> dict[str, Process]:
    upstream = made.upstream("--delay-ms", str(UPSTREAM_MS))
    upstream.start(cpus=cpus.others)
    targets = {"direct": upstream}
    for name, kind in FLOORS.items():
        targets[name] = getattr(made, kind)(upstream)
    urls = (f"sqlite:///{made.directory}/store.db", f"redis://127.0.0.1:{redis.port}/0")
    for name, url in zip(STORES, urls, strict=True):
        targets[name] = made.gateway(url, "--upstream", upstream.url)
    for name, target in targets.items():
        if name != "direct":
            target.start(cpus=cpus.target)
    return targets


def _measure(targets: dict[str, Process], num_requests: int) -> dict[str, list[float]]:
    """Milliseconds of each request. Every target gets the same bytes over a connection that is
    kept, and so does the upstream from each of them."""
    rng = random.Random(5)
    body = json.dumps({"prompt": "x" * 400, "max_tokens": 16}).encode()
    clients = {name: PlainClient(target.port, PATH) for name, target in targets.items()}
    times: dict[str, list[float]] = {name: [] for name in targets}
    for client in clients.values():
        for _ in range(NUM_WARM_UP):
            client.post(uuid.uuid4().hex, body)
    while len(times["direct"]) < num_requests:
        num_in_block = min(NUM_IN_BLOCK, num_requests - len(times["direct"]))
        for name in rng.sample(list(targets), len(targets)):
            for _ in range(num_in_block):
                times[name].append(clients[name].post(uuid.uuid4().hex, body))
    for client in clients.values():
        client.close()
    return times


def _added(times: dict[str, list[float]], name: str) -> tuple[float, float]:
    """Milliseconds, P50 and P99."""
    p50, p99 = (
        percentile(times[name], share) - percentile(times["direct"], share) for share in (0.5, 0.99)
    )
    return p50, p99


def _shown(added: tuple[float, float]) -> str:
    return f"P50 {added[0]:.2f}, P99 {added[1]:.2f} ms"


def _judge(name: str, times: dict[str, list[float]], store_ms: float, cpu_ms: float) -> bool:
    """`store_ms` is what the bare store takes for the writes that a request waits for."""
    added, relay_ms = _added(times, name), max(0.0, _added(times, "relay in C")[0])
    holds = added[0] <= 1 and added[1] <= 3
    print(
        f"added latency, {name}: {_shown(added)} (bars 1 and 3): {'holds' if holds else 'MISSED'}; "
        f"{relay_ms + store_ms:.2f} ms of the P50 are the bare relay's and store's; "
        f"{len(times[name])} requests, {cpu_ms:.2f} ms of CPU each"
    )
    return holds
