"""The load of the contract's bars: short chats as they come, and now and then a long prompt."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from takt.bench.endpoint import Endpoint
from takt.bench.http_client import HttpClient
from takt.bench.load import Load, LoadRun, PreparedRequest
from takt.bench.record import RequestRecord
from takt.plan.simulate.arrivals import Arrival
from takt.scheduler.slo import SLO

SHORT = (400, 128)
LONG = (3000, 8)
LONG_EVERY_S = 5.0
TIMEOUT_S = 180.0
LOWEST_TOKEN_ID, HIGHEST_TOKEN_ID = 100, 30_000
"""Prompts are drawn from these ids: no two have a block in common."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Poisson at `rate_per_s`, and long prompts; the same requests for the same seed.

    With another `share` both come that much more often.
    """

    rate_per_s: float
    seconds: float
    seed: int = 1
    long_ttft_ms: float | None = None
    """Target of the long ones, which have the server's of ITL."""
    share: float = 1.0
    scale: int = 1
    """Lengths are divided by it, and requests come as many times as often."""

    def arrivals(self) -> list[Arrival]:
        rng = random.Random(f"mix-{self.seed}")
        arrivals, clock_s = [], 0.0
        often = self.share * self.scale
        short, long = ([length // self.scale for length in kind] for kind in (SHORT, LONG))
        while (clock_s := clock_s + rng.expovariate(often * self.rate_per_s)) < self.seconds:
            arrivals.append(Arrival(round(clock_s * 1e9), *short))
        slo = SLO.from_ms(None, self.long_ttft_ms)
        clock_s = LONG_EVERY_S / often / 2
        while clock_s < self.seconds:
            arrivals.append(Arrival(round(clock_s * 1e9), *long, slo))
            clock_s += LONG_EVERY_S / often
        return sorted(arrivals, key=lambda arrival: arrival.time_ns)


GivesUp = Callable[[Sequence[RequestRecord], float], bool]
"""Whether, with these records and so many seconds after the start, enough is known."""


def send(
    url: str,
    arrivals: Sequence[Arrival],
    *,
    keeps_targets: bool = True,
    gives_up: GivesUp | None = None,
) -> LoadRun:
    """Sends each request at its time and waits for all of them, or until it gives up."""
    client = HttpClient(Endpoint.parse(url))
    rng = random.Random(len(arrivals))
    prepared = [
        _prepare(client, index, arrival, rng, keeps_targets)
        for index, arrival in enumerate(arrivals)
    ]

    async def run() -> LoadRun:
        load = asyncio.ensure_future(
            Load(client, TIMEOUT_S, lambda record: None).open_loop(prepared)
        )
        try:
            begin_s = time.monotonic()
            while gives_up is not None and not (await asyncio.wait([load], timeout=1.0))[0]:
                if gives_up([one.record for one in prepared], time.monotonic() - begin_s):
                    load.cancel()  # it returns what it has
                    break
            return await load
        finally:
            client.close()

    return asyncio.run(run())


def _prepare(
    client: HttpClient, index: int, arrival: Arrival, rng: random.Random, keeps_targets: bool
) -> PreparedRequest:
    num_prompt, num_output = arrival.num_prompt_tokens, arrival.num_output_tokens
    body: dict[str, object] = {
        "prompt": [rng.randint(LOWEST_TOKEN_ID, HIGHEST_TOKEN_ID) for _ in range(num_prompt)],
        "max_tokens": num_output,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if arrival.slo.ttft_ns is not None and keeps_targets:
        body["slo"] = {"ttft_ms": arrival.slo.ttft_ns / 1e6}
    record = RequestRecord(index, num_prompt, num_output, is_long=num_prompt > SHORT[0])
    payload = client.encode("POST", "/v1/completions", body)
    return PreparedRequest(payload, record, arrival.time_ns / 1e9)
