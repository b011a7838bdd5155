"""A port for a server that cannot be asked to choose its own."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST = 20_000
_random = random.SystemRandom()
"""Test processes must not draw the same ports."""


def free_port() -> int:
    """Outside those that the kernel gives to connections: one of these could have taken it before
    the server does, or while the server is down."""
    first_given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    for _ in range(100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", _random.randrange(FIRST, max(int(first_given), 32_768))))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise AssertionError(f"no free port from {FIRST}")
