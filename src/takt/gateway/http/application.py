"""What an HTTP server asks of what it serves."""

from __future__ import annotations

from typing import Protocol

from takt.gateway.errors import GatewayError
from takt.gateway.http.exchange import Exchange


class Application(Protocol):
    max_body_bytes: int

    def admit(self, exchange: Exchange) -> None:
        """Looks at a head before the body is read. Raises `GatewayError` to refuse it."""
        ...

    async def handle(self, exchange: Exchange) -> None:
        """Answers an admitted request, whose body is whole. Cancelled if its client goes."""
        ...

    def dismiss(self, exchange: Exchange) -> None:
        """An admitted request will not be handled: its body never came."""
        ...

    def refused(self, error: GatewayError) -> None:
        """A request was answered with this, and not handled."""
        ...
