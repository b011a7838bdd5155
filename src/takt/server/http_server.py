"""uvicorn as we run it: a socket bound beforehand, our protocol, and signals left to us."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from takt.config import ServerOptions
from takt.errors import ConfigError
from takt.server.connection import TaktHttpProtocol

SEND_BUFFER_BYTES = 128 * 1024
"""Of a connection in the kernel: without a limit it grows to megabytes, and a client that stopped
reading would be noticed tens of thousands of tokens late."""

MAX_UNIX_PATH_BYTES = 107
"""Of a Unix socket's path, on Linux."""

KEEP_ALIVE_SECONDS = 60
SHUTDOWN_SECONDS = 5
"""Time for connections to close once every response has ended."""


class PortInUseError(ConfigError):
    """The address cannot be listened on."""


class HttpServer(uvicorn.Server):
    """Leaves signals to its owner, who drains before it sets `should_exit`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def make_http_server(app: ASGIApp, options: ServerOptions) -> HttpServer:
    """Raises `ConfigError` if the TLS files cannot be used."""
    if options.ssl_keyfile is not None and options.ssl_certfile is None:
        raise ConfigError("--ssl-keyfile needs --ssl-certfile")
    config = uvicorn.Config(
        app,
        uds=options.uds,
        http=TaktHttpProtocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_keyfile=options.ssl_keyfile,
        ssl_certfile=options.ssl_certfile,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError, AssertionError) as error:
        raise ConfigError(
            f"TLS with --ssl-certfile {options.ssl_certfile} and --ssl-keyfile "
            f"{options.ssl_keyfile} is not possible: {error}"
        ) from None
    return HttpServer(config)


def bind_socket(options: ServerOptions) -> socket.socket | None:
    """A bound TCP socket, or None for a Unix socket, which is made by uvicorn.

    Raises `PortInUseError` if somebody listens there, or the address is none of this machine's.
    """
    if options.uds is not None:
        _check_unix_socket(options.uds)
        return None
    try:
        family, _, _, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise PortInUseError(
            f"cannot listen on {options.host} port {options.port}: {_reason(error)}; "
            "choose another with --host or --port"
        ) from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return bound


def address_of(options: ServerOptions, bound: socket.socket | None) -> str:
    """The URL that clients use."""
    scheme = "https" if options.ssl_certfile else "http"
    if bound is None:
        return f"{scheme}+unix://{options.uds}"
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{scheme}://{host}:{bound.getsockname()[1]}"


def remove_unix_socket(path: str) -> None:
    """Removes a server's socket file when it stops; never a file of another kind."""
    with contextlib.suppress(OSError):
        if Path(path).is_socket():
            Path(path).unlink()


def _reason(error: OSError) -> str:
    """The system's own words: `create_server` adds the address to them, which is said already."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _check_unix_socket(path: str) -> None:
    """A socket file that nobody listens on is a left-over, and is replaced."""
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_UNIX_PATH_BYTES:
        raise ConfigError(
            f"--uds has {num_bytes} bytes, more than the {MAX_UNIX_PATH_BYTES} of a Unix socket"
        )
    if not os.access(Path(path).parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--uds {path}: its directory is missing or cannot be written")
    if not os.path.lexists(path):
        return
    if not Path(path).is_socket():
        raise ConfigError(f"--uds {path} is a file, and no socket: name another path")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise PortInUseError(f"cannot listen on {path}: {error.strerror}") from None
    raise PortInUseError(f"cannot listen on {path}: another server does")
