"""Starts `takt serve` as a process of its own, with a log of its steps, and ends it."""

from __future__ import annotations

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

from takt.errors import TaktError
from takt.observe.step_log import LoggedStep, read_step_log

START_SECONDS = 900.0
"""The first start of a model fetches it."""

STOP_SECONDS = 60.0

_ANNOUNCED = re.compile(r"Serving on (\S+?)\. ")


class ServiceError(TaktError):
    """The planned service does not start."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running server; `steps` may be read at any time."""

    url: str
    step_log: Path

    def steps(self) -> list[LoggedStep]:
        return read_step_log(self.step_log)


@contextmanager
def started(arguments: Sequence[str]) -> Iterator[Service]:
    """`takt serve` with `arguments`, on a free port. Raises `ServiceError` with its last line."""
    with tempfile.TemporaryDirectory() as folder:
        step_log, output = Path(folder) / "steps.jsonl", Path(folder) / "output"
        command = [
            *(sys.executable, "-c", "from takt.cli.main import main; main()", "serve"),
            *(*arguments, "--port", "0", "--disable-access-log", "--step-log", str(step_log)),
        ]
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            yield Service(_wait_for_url(process, output), step_log)
        finally:
            _stop(process)


def _wait_for_url(process: subprocess.Popen[bytes], output: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := _ANNOUNCED.search(output.read_text(errors="replace")):
            return found.group(1)
        if process.poll() is not None:
            break
        time.sleep(0.05)
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("takt: ") if lines else f"it ended with {process.returncode}"
    raise ServiceError(f"the service did not start: {last}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
