"""A real Redis (or Valkey) of the tests' own, in a directory of its own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from free_port import free_port

SERVICES = Path(__file__).parents[2] / "scripts" / "test-services"


class RedisProcess:
    """`kill` and `start` may alternate: the data stay in the directory."""

    def __init__(
        self, directory: Path, *, appendonly: bool = True, appendfsync: str = "always"
    ) -> None:
        command = _command()
        if command is None:
            subprocess.run([SERVICES], check=True)
            command = _command()
        assert command is not None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._log = directory / "redis.log"
        self._arguments = [
            command,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)),
            *("--appendonly", "yes" if appendonly else "no", "--appendfsync", appendfsync),
            *("--save", "", "--logfile", str(self._log)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments, stdout=subprocess.DEVNULL)
        for _ in range(6000):
            if self._process.poll() is not None:
                break
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(64).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.01)
        log = self._log.read_text()[-500:] if self._log.exists() else "it wrote no log"
        raise RuntimeError(f"redis did not start: {log}")

    def pause(self) -> None:
        """It accepts connections and answers nothing, until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: nothing is written that was not yet."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _command() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")
