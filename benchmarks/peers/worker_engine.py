"""An engine inside a worker process of another environment."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.engine import EngineError, Timeline

WORKERS = Path(__file__).parent


class WorkerEngine:
    """Starts the worker and loads; raises `EngineError` if it cannot."""

    def __init__(self, python: str, worker: str, settings: dict[str, Any]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the worker)
        self._process = subprocess.Popen(
            [python, str(WORKERS / worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self._ask({"settings": settings})
        except EngineError:
            self.close()
            raise

    def run(self, prompts: Sequence[list[int]], streams: int, num_output: int) -> list[Timeline]:
        answer = self._ask({"prompts": list(prompts), "streams": streams, "num_output": num_output})
        timelines = []
        for request in answer["requests"]:
            if len(request["stamps"]) != num_output:
                raise EngineError(f"{len(request['stamps'])} tokens came, not {num_output}")
            stamps = np.array(request["stamps"], dtype=np.int64)
            timelines.append(Timeline(request["start_ns"], stamps))
        return timelines

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineError(f"the worker ended: {self._last_words()}") from None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"the worker ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-500:]


def make_file(python: str, worker: str, settings: dict[str, Any], path: Path) -> None:
    """Has a worker write a file; raises `EngineError` if it is not there afterwards."""
    engine = WorkerEngine(python, worker, settings)
    engine.close()
    if not path.exists():
        raise EngineError(f"{worker} did not write {path}")
