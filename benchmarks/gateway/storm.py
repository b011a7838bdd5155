"""What a storm of retries comes to."""

from __future__ import annotations

import asyncio

import aiohttp
from benchmarks.gateway.latency import PATH
from benchmarks.gateway.processes import rig


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
