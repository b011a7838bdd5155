"""Breaks connections between a gateway and an upstream that has no faults of its own.

    python -m benchmarks.gateway.fault_proxy --port N --upstream-port N

Of the requests, some never arrive, some are answered into a connection that is cut at the first
byte or in the middle, and some arrive and are never answered.
"""

from __future__ import annotations

import argparse
import asyncio
import random

import uvloop

SEED = 13
FAULTS = {"before": 0.04, "first_byte": 0.03, "middle": 0.03, "silence": 0.01}
SILENT_SECONDS = 3.0


class Relay:
    """One connection, both ways; a fault is drawn for each request that passes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._fault: str | None = None

    async def run(
        self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], upstream_port: int
    ) -> None:
        upstream = await asyncio.open_connection("127.0.0.1", upstream_port)
        ways = [
            asyncio.create_task(self._requests(client[0], upstream[1])),
            asyncio.create_task(self._answers(upstream[0], client[1])),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in (client[1], upstream[1]):
            writer.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if data.startswith(b"POST "):
                self._fault = self._draw()
                if self._fault == "before":
                    return
            writer.write(data)
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._fault == "silence":
                await asyncio.sleep(SILENT_SECONDS)
                return
            if self._fault == "first_byte":
                return
            if self._fault == "middle":
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return
            writer.write(data)
            await writer.drain()

    def _draw(self) -> str | None:
        draw = self._rng.random()
        for name, share in FAULTS.items():
            draw -= share
            if draw < 0:
                return name
        return None


async def _serve(port: int, upstream_port: int) -> None:
    rng = random.Random(SEED)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Relay(rng).run((reader, writer), upstream_port)
        except OSError:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream-port", type=int, required=True)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options.port, options.upstream_port))


if __name__ == "__main__":
    main()
