"""The two small C++ programs that say what this machine can do, compiled when they are needed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

SOURCES = Path(__file__).parent
BUILD = SOURCES.parent.parent / "build" / "bench"


class ReadLoop:
    """A running `read_loop`: passes over its buffer, when asked for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, num_passes: int) -> npt.NDArray[np.float64]:
        """Milliseconds of each pass, float64 `[num_passes]`. Asleep between calls."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{num_passes}\n")
        self._process.stdin.flush()
        times_ns = self._process.stdout.readline().split()
        if len(times_ns) != num_passes:
            raise RuntimeError("the read loop ended")
        return np.array(times_ns, dtype=np.float64) / 1e6


@contextmanager
def read_loop(num_bytes: int, num_threads: int) -> Iterator[ReadLoop]:
    command = [str(compiled("read_loop")), str(num_bytes), str(num_threads)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield ReadLoop(process)
        finally:
            process.kill()


def vnni_peak(num_threads: int, seconds: float) -> float:
    """int8 operations per second from registers; 0 where the CPU has no such instruction."""
    command = [str(compiled("vnni_peak")), str(num_threads), str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compiled(name: str) -> Path:
    """The program of `name`.cc, compiled for this CPU if it is new or changed."""
    source, program = SOURCES / f"{name}.cc", BUILD / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CXX", "g++")
        flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
        subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    return program


def num_cpus() -> int:
    return len(os.sched_getaffinity(0))
