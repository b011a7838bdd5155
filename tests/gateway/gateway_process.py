"""`takt gateway` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence

COMMAND = [sys.executable, "-c", "from takt.cli.main import main; main()"]


def run_takt(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200)


class GatewayProcess:
    """Started on a free port, which it prints."""

    def __init__(self, store_url: str, upstream_url: str, *flags: str) -> None:
        arguments: Sequence[str] = [
            *COMMAND,
            "gateway",
            *("--port", "0", "--store", store_url, "--upstream", upstream_url),
            *("--lease-ms", "500", "--health-interval-ms", "100", "--log-level", "error"),
            *flags,
        ]
        self._process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        found = re.search(r"https?://[\d.]+:\d+", line)
        assert found is not None, line + self._process.stderr.read()
        self.url = found.group()

    def kill(self) -> None:
        """SIGKILL; nothing if it has ended."""
        if self._process.returncode is None:
            self._process.kill()
            self._end()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._end()

    def signal_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._end()

    def _end(self) -> int:
        code = self._process.wait(timeout=200)
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code
