"""The processes of the gateway's benchmarks: gateways, an upstream, a Redis."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
START_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A command that is started, killed with SIGKILL, and started again."""

    def __init__(self, command: list[str], log: Path, ready_url: str | None, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.kill_times_s: list[float] = []
        """On the monotonic clock."""
        self.num_child_kills = 0
        self._command = command
        self._log = log
        self._ready_url = ready_url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True, cpus: set[int] | None = None) -> None:
        """`cpus` are those that it may run on, if not all that this process may."""
        own = os.sched_getaffinity(0)
        with self._log.open("ab") as log:
            # A child has its parent's CPUs from its first instruction on.
            os.sched_setaffinity(0, cpus or own)
            try:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
            finally:
                os.sched_setaffinity(0, own)
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                break
            if self._is_ready():
                return
            time.sleep(0.02)
        raise RuntimeError(f"{self._command[:4]} did not start:\n{self._log.read_text()[-2000:]}")

    @property
    def num_kills(self) -> int:
        return len(self.kill_times_s)

    def cpu_s(self) -> float:
        """Processor time of the process so far."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        if self._process is not None:
            self.kill_times_s.append(time.monotonic())
            self._process.kill()
            self._process.wait()
            self._process = None

    def kill_child(self, module: str) -> None:
        """SIGKILL to the child that runs a module; the process is left to deal with it."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for pid in children.read_text().split():
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(int(pid), signal.SIGKILL)
                self.num_child_kills += 1

    def _is_ready(self) -> bool:
        if self._ready_url is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    return probe.recv(16).startswith(b"+PONG")
            except OSError:
                return False
        try:
            with urllib.request.urlopen(self.url + self._ready_url, timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False


class Rig:
    """Makes processes in one directory, which is deleted with them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[Process] = []

    def add(self, command: list[str], name: str, ready_url: str | None, port: int) -> Process:
        process = Process(command, self.directory / f"{name}.log", ready_url, port)
        self.processes.append(process)
        return process

    def upstream(self, *flags: str) -> Process:
        port = free_port()
        command = [sys.executable, str(HERE / "upstream.py"), "--port", str(port), *flags]
        return self.add(command, "upstream", "/health", port)

    def takt(self, model: str, *flags: str) -> Process:
        port = free_port()
        command = [
            *(sys.executable, "-c", "from takt.cli.main import main; main()", "serve", model),
            *("--port", str(port), "--log-level", "error", "--disable-access-log", *flags),
        ]
        return self.add(command, "takt", "/health", port)

    def fault_proxy(self, upstream: Process) -> Process:
        port = free_port()
        command = [sys.executable, str(HERE / "fault_proxy.py"), "--port", str(port)]
        command += ["--upstream-port", str(upstream.port)]
        return self.add(command, "proxy", "/health", port)

    def gateway(self, store_url: str, *flags: str) -> Process:
        port = free_port()
        command = [
            *(sys.executable, "-c", "from takt.cli.main import main; main()", "gateway"),
            *("--port", str(port), "--store", store_url, "--log-level", "error", *flags),
        ]
        return self.add(command, f"gateway-{port}", "/health", port)

    def relay(self, upstream: Process) -> Process:
        """In Python, on the gateway's event loop."""
        port = free_port()
        command = [sys.executable, str(HERE / "relay.py"), "--port", str(port)]
        command += ["--upstream-port", str(upstream.port)]
        return self.add(command, "relay", "/health", port)

    def c_relay(self, upstream: Process) -> Process:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit("a C compiler is missing: this part measures against a relay in C")
        program = self.directory / "relay"
        subprocess.run([compiler, "-O2", str(HERE / "relay.c"), "-o", str(program)], check=True)
        port = free_port()
        return self.add([str(program), str(port), str(upstream.port)], "c-relay", "/health", port)

    def redis(self) -> Process:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            raise SystemExit("redis-server is missing: run scripts/test-services")
        port = free_port()
        data = self.directory / f"redis-{port}"
        data.mkdir()
        command = [
            *(binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        ]
        return self.add(command, "redis", None, port)


@contextmanager
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory() as directory:
        made = Rig(Path(directory))
        try:
            yield made
        finally:
            for process in made.processes:
                process.kill()
