"""What the machine under a benchmark does and costs by itself."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

NUM_SYNCS = 200


class BusyShare:
    """How busy all CPUs have been since this was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._idle, self._total = _cpu_ticks()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    @property
    def share(self) -> float:
        idle, total = _cpu_ticks()
        return 1 - (idle - self._idle) / max(1, total - self._total)


def _cpu_ticks() -> tuple[int, int]:
    """Idle ticks and all ticks since boot, of all CPUs."""
    ticks = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def sync_ms(directory: Path, gap_ms: float = 0.0) -> list[float]:
    """What a promise of durability costs here at least: a write of 4 KiB and its sync, `gap_ms`
    behind the one before, into a file that does not grow."""
    times = []
    with (directory / "sync").open("w+b", buffering=0) as file:
        file.write(bytes(4096 * NUM_SYNCS))
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(NUM_SYNCS):
            time.sleep(gap_ms / 1000)
            begin = time.perf_counter_ns()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append((time.perf_counter_ns() - begin) / 1e6)
    return times


def redis_set_ms(port: int, gap_ms: float) -> list[float]:
    """What a bare Redis takes to keep 100 bytes, `gap_ms` behind the time before. A request through
    a gateway waits for it twice."""
    times = []
    command = b"*3\r\n$3\r\nSET\r\n$5\r\nfloor\r\n$100\r\n%b\r\n" % bytes(100)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(NUM_SYNCS):
            time.sleep(gap_ms / 1000)
            begin = time.perf_counter_ns()
            connection.sendall(command)
            assert connection.recv(64) == b"+OK\r\n"
            times.append((time.perf_counter_ns() - begin) / 1e6)
    return times


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
