"""A server in a process of its own, and what it wrote to stderr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx


class ServedProcess:
    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> re.Match[str]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern} not in {self.lines}")

    def url(self) -> str:
        return self.read_until(r"Serving on (\S+?)\. ").group(1)

    def end(self) -> int:
        """Waits for the exit code; the rest of stderr is in `lines`."""
        _, rest = self.process.communicate(timeout=200)
        self.lines += rest.splitlines(keepends=True)
        return self.process.returncode

    @property
    def last_line(self) -> str:
        return self.lines[-1].rstrip()


@contextmanager
def served_process(*command: str) -> Iterator[ServedProcess]:
    server = ServedProcess(command)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def wait_for_status(url: str, status: int, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while httpx.get(url, timeout=200).status_code != status:
        assert time.monotonic() < end, f"{url} never gave {status}"
        time.sleep(0.02)
