"""Reads requests from the bytes of a connection, strictly: what two readers could take for
different requests is none."""

from __future__ import annotations

from collections import deque

import httptools

from takt.gateway.errors import GatewayError
from takt.gateway.http.exchange import Exchange, Wire
from takt.gateway.http.fields import MAX_HEAD_BYTES, FieldReader, Headers, is_chunked_only


class RequestReader:
    """Only collects: whoever feeds it looks at what there is afterwards.

    llhttp, which httptools wraps, refuses a message with both Content-Length and
    Transfer-Encoding, several lengths, bare line feeds, folded lines and blanks before a colon.
    """

    def __init__(self, wire: Wire, max_body_bytes: int) -> None:
        self.exchanges: deque[Exchange] = deque()
        """Requests whose head has come, in order; the body of the last may still come."""
        self.error: GatewayError | None = None
        """What follows the requests is none. Nothing more is read then."""
        self.is_in_head = False
        self._wire = wire
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._fields = FieldReader()
        self._url = b""
        self._num_head_bytes = 0
        self._receiving: Exchange | None = None

    def feed(self, data: bytes) -> None:
        if self.error is not None:
            return
        if self.is_in_head:  # what begins a head is counted when its fields are known
            self._num_head_bytes += len(data)
        left: bytes | memoryview = data
        while self.error is None and (offer_end := self._parse(left)) is not None:
            self._pass_over_offer()
            left = memoryview(left)[offer_end:]
        if self.is_in_head and self._num_head_bytes > MAX_HEAD_BYTES:
            self._fail(_head_too_large())

    def _parse(self, data: bytes | memoryview) -> int | None:
        """Where the parser stopped: behind a head that offers to upgrade, if there is one."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError:
            self._fail(GatewayError(400, "bad_request", "This is not valid HTTP/1.1."))
        return None

    def _fail(self, error: GatewayError) -> None:
        if self.error is None:
            self.error = error
        self.is_in_head = False
        self._receiving = None

    # -- what the parser finds ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.is_in_head = self.error is None
        self._url = b""
        self._fields = FieldReader()
        self._num_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:  # else it stands behind a chunked body, where it is of no use
            self._fields.add(name, value)

    def on_headers_complete(self) -> None:
        if not self.is_in_head:
            return
        self.is_in_head = False
        if len(self._url) + self._fields.num_bytes > MAX_HEAD_BYTES:
            self._fail(_head_too_large())
            return
        if self._parser.should_upgrade():
            return
        version = self._parser.get_http_version()
        exchange = Exchange(
            self._wire,
            self._parser.get_method().decode("ascii"),
            self._url.decode("utf-8", "surrogateescape"),
            Headers(self._fields.pairs),
            is_http10=version == "1.0",
            keeps_alive=version == "1.1" and self._parser.should_keep_alive(),
        )
        exchange.problem = self._problem(exchange, version)
        self._receiving = exchange
        self.exchanges.append(exchange)

    def on_body(self, data: bytes) -> None:
        exchange = self._receiving
        if exchange is None:
            return
        exchange.num_body_bytes += len(data)
        if exchange.problem is None:
            if exchange.num_body_bytes > self._max_body_bytes:
                exchange.problem = body_too_large(self._max_body_bytes)
                exchange.drop_body()
            else:
                exchange.receive(data)

    def on_message_complete(self) -> None:
        if self._receiving is not None:
            self._receiving.is_received = True
            self._receiving = None

    def _problem(self, exchange: Exchange, version: str) -> GatewayError | None:
        if version not in ("1.0", "1.1"):
            exchange.keeps_alive = False
            return GatewayError(505, "bad_version", "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
        num_hosts = exchange.headers.count("host")
        if num_hosts > 1 or (num_hosts == 0 and not exchange.is_http10):
            exchange.keeps_alive = False
            return GatewayError(400, "bad_host", "A request must have one Host header.")
        if not is_chunked_only(exchange.headers):
            exchange.keeps_alive = False
            return GatewayError(
                501, "bad_transfer_encoding", "Only the transfer coding chunked is known here."
            )
        if (exchange.content_length or 0) > self._max_body_bytes:
            return body_too_large(self._max_body_bytes)
        return None

    def _pass_over_offer(self) -> None:
        """Reads the head again without its offer, which the parser takes for accepted: some
        clients offer HTTP/2 with every request, and RFC 9110 (7.8) lets a server ignore that."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._fail(GatewayError(405, "method_not_allowed", "CONNECT is not allowed here."))
            return
        lines = [b"%b %b HTTP/%b" % (method, self._url, self._parser.get_http_version().encode())]
        lines += [
            f"{name}: {value}".encode("utf-8", "surrogateescape")
            for name, value in self._fields.pairs
            if name.lower() != "upgrade"
        ]
        self._parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join(lines) + b"\r\n\r\n")


def body_too_large(limit: int) -> GatewayError:
    return GatewayError(
        413, "body_too_large", f"The body is longer than {limit} bytes (--max-request-bytes)."
    )


def _head_too_large() -> GatewayError:
    return GatewayError(
        431, "head_too_large", f"The request's head is longer than {MAX_HEAD_BYTES} bytes."
    )
