"""What the gateway adds to the delay of each piece of many streams."""

from __future__ import annotations

import asyncio
import json
import random
import uuid

from benchmarks.gateway.latency import PATH
from benchmarks.gateway.machine import BusyShare, percentile
from benchmarks.gateway.plain_client import EventStream, request_bytes
from benchmarks.gateway.processes import Process, rig

GAP_MS = 200
BEGIN_SECONDS = 2.0
"""Over which the streams begin, at random: clients do not all come in the same millisecond, and
what many new requests at once cost is the latency's to tell."""

NUM_ROUNDS = 2


async def streams(num_streams: int, num_events: int) -> bool:
    """Streams of five events a second: the delay of each event from when the upstream wrote it,
    direct and through the gateway in turn."""
    direct: list[float] = []
    through: list[float] = []
    with rig() as made:
        upstream = made.upstream()
        upstream.start()
        gateway = made.gateway(f"sqlite:///{made.directory}/store.db", "--upstream", upstream.url)
        gateway.start()
        before_s, busy = gateway.cpu_s(), BusyShare()
        for _ in range(NUM_ROUNDS):
            direct += await _delays(upstream, num_streams, num_events // NUM_ROUNDS)
            through += await _delays(gateway, num_streams, num_events // NUM_ROUNDS)
        busy_share = busy.share
        cpu_us = 1e6 * (gateway.cpu_s() - before_s) / max(1, len(through))
    added = percentile(through, 0.999) - percentile(direct, 0.999)
    print(
        f"streams, {num_streams} x {1000 // GAP_MS} events a second: P99.9 of the delay "
        f"{added:+.1f} ms (bar 20), direct {percentile(direct, 0.999):.1f}, through the gateway "
        f"{percentile(through, 0.999):.1f} ms; P50 {percentile(direct, 0.5):.2f} and "
        f"{percentile(through, 0.5):.2f} ms, worst {max(direct):.1f} and {max(through):.1f} ms; "
        f"{len(through)} events; {cpu_us:.0f} us of the gateway's CPU an event; "
        f"all CPUs of the machine {100 * busy_share:.0f} % busy"
    )
    return added <= 20 and len(through) == len(direct) == num_streams * num_events


async def _delays(target: Process, num_streams: int, num_events: int) -> list[float]:
    """Milliseconds, of every event of every stream."""
    delays: list[float] = []
    wanted = {"prompt": "x", "stream": True, "events": num_events, "gap_ms": GAP_MS}
    body = json.dumps(wanted).encode()
    rng = random.Random(7)

    loop = asyncio.get_running_loop()

    async def stream(wait_seconds: float) -> None:
        await asyncio.sleep(wait_seconds)
        request = request_bytes(target.port, PATH, uuid.uuid4().hex, body)
        _, events = await loop.create_connection(
            lambda: EventStream(request, delays), "127.0.0.1", target.port
        )
        await events.done

    waits = [rng.uniform(0, BEGIN_SECONDS) for _ in range(num_streams)]
    await asyncio.gather(*(stream(wait) for wait in waits))
    return delays
