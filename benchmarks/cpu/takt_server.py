"""Takt's server as a process, with the record of its steps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

STOP_SECONDS = 30.0

Columns = dict[str, npt.NDArray[np.int64]]


@dataclass(slots=True)
class TaktServer:
    """`steps` is there once the server has stopped."""

    url: str
    process: subprocess.Popen[str]
    record: Path

    def steps(self) -> Columns:
        """int64 `[num_steps]` for each stamp and count of a step, oldest first."""
        with np.load(self.record) as columns:
            return {name: columns[name] for name in columns.files}

    def cpu_s(self) -> float:
        """Processor time of the server and its children so far."""
        ticks = sum(_cpu_ticks(pid) for pid in process_tree(self.process.pid))
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def takt_server(
    model: str, arguments: Sequence[str] = (), *, script: Path | None = None
) -> Iterator[TaktServer]:
    """A server with `arguments` besides the model, on a free port. Raises `RuntimeError`.

    `script` takes the place of `takt` and of the record of steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        record, log = Path(folder) / "steps.npz", Path(folder) / "log"
        recorded = [str(Path(__file__).with_name("recorded_serve.py")), str(record)]
        command = [sys.executable, *(recorded if script is None else [str(script)])]
        command += ["serve", model, "--port", "0", "--disable-access-log", *arguments]
        with log.open("w") as log_file:
            process = subprocess.Popen(command, stderr=log_file, text=True)
        server = TaktServer("", process, record)
        try:
            server.url = _wait_for_url(process, log)
            yield server
        finally:
            server.stop()


def _wait_for_url(process: subprocess.Popen[str], log: Path, seconds: float = 300.0) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := re.search(r"Serving on (\S+?)\. ", log.read_text()):
            return found.group(1)
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


def process_tree(pid: int) -> list[int]:
    """A process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat_fields(entry)
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def _cpu_ticks(pid: int) -> int:
    fields = _stat_fields(Path(f"/proc/{pid}/stat"))
    return int(fields[11]) + int(fields[12]) if fields else 0


def _stat_fields(path: Path) -> list[str]:
    """Fields behind the command's name, from the state on; none for a process that has gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []
