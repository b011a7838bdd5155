"""A TCP relay on the gateway's event loop that does nothing but relay: what no gateway written in
Python can be faster than.

    python -m benchmarks.gateway.relay --port N --upstream-port N
"""

from __future__ import annotations

import argparse
import asyncio
from typing import cast

import uvloop


class Upstream(asyncio.Protocol):
    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()


class Client(asyncio.Protocol):
    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._upstream: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    def data_received(self, data: bytes) -> None:
        if self._upstream is None:
            self._early.append(data)
        else:
            self._upstream.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opening.cancel()
        if self._upstream is not None:
            self._upstream.close()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._upstream, _ = await loop.create_connection(
            lambda: Upstream(self._transport), "127.0.0.1", self._upstream_port
        )
        self._upstream.writelines(self._early)


async def serve(port: int, upstream_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(upstream_port), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream-port", type=int, required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.upstream_port))


if __name__ == "__main__":
    main()
