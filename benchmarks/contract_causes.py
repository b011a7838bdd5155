"""Whether the ledger names what made tokens late: causes are planted in a real server, one by one.

    python -m benchmarks.contract_causes [CAUSE ...] [--quick] [--model smollm2-135m]

Some streams decode all the time. Beside them come long prompts (under fcfs with a large budget), a
busy process on one of the CPUs, forced collections in the engine, and a client that stops reading.
A late gap that falls into a planted stretch should have its cause; precision and recall are over
gaps. Late gaps between the stretches are the machine's own, and count for nothing but the
unexplained share. A cause whose plants made hardly a gap late is not judged, and missed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.cpu.bar import BarResult, BenchSetting, Figure, Verdict
from benchmarks.cpu.bars.busy_neighbour import busy_process
from benchmarks.cpu.takt_server import TaktServer, takt_server
from rich.console import Console
from rich.table import Table

STREAMS = 3
OUTPUT_TOKENS = 1500
PROMPT_TOKENS = 1800
STOPPED_SECONDS = 6.0
STOPPED_STEPS = 300
"""In so many at least: on a busy machine they take longer, and the buffers would not be full."""
STOPPED_CHOICES = 4
LEAST_PLANTED = 15
"""Late gaps without which a share of them says nothing."""
CAUSES = ("prefill_interference", "stolen_cpu", "garbage_collection", "slow_client")
SCRIPT = Path(__file__).with_name("littering_engine.py")
ARGUMENTS = ("--scheduling-policy", "fcfs", "--max-num-batched-tokens", "2048")
# A client that has stopped must come back: it is not to be cut off before.
ARGUMENTS += ("--stream-buffer-tokens", "100000")


@dataclass(slots=True)
class Stretch:
    """Time in which one cause was planted, for all streams or for one request's.

    A moment, in which it begins and ends, makes the one gap late that it lies in.
    """

    cause: str
    begin_ns: int
    end_ns: int
    request_id: str | None = None


@dataclass(slots=True)
class Plants:
    """What was done to the server, and when."""

    stretches: list[Stretch] = field(default_factory=list)

    @contextmanager
    def stretch(self, cause: str) -> Iterator[Stretch]:
        planted = Stretch(cause, time.monotonic_ns(), 0)
        yield planted
        planted.end_ns = time.monotonic_ns()
        self.stretches.append(planted)

    def cause_of(self, request_id: str, begin_ns: int, end_ns: int) -> str | None:
        """The cause planted in most of a gap, if in half of it."""
        best, most = None, (end_ns - begin_ns) / 2
        for s in self.stretches:
            if s.request_id not in (None, request_id):
                continue
            if s.begin_ns == s.end_ns and begin_ns <= s.begin_ns <= end_ns:
                return s.cause
            overlap = min(end_ns, s.end_ns) - max(begin_ns, s.begin_ns)
            if overlap > most:
                best, most = s.cause, overlap
        return best


class Background:
    """Streams that decode without end while something is planted."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(STREAMS)]

    def __enter__(self) -> Background:
        for thread in self._threads:
            thread.start()
        time.sleep(1.0)
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            connection = start_stream(self._url, [7, 8, 9], OUTPUT_TOKENS)
            while not self._ends.is_set() and connection.recv(1 << 16):
                pass
            connection.close()


def start_stream(
    url: str, prompt: list[int], max_tokens: int, *, receive_buffer: int | None = None, **more: Any
) -> socket.socket:
    """A connection whose streamed answer nobody has read yet."""
    parts = urllib.parse.urlsplit(url)
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((parts.hostname, parts.port))
    fields = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    body = json.dumps({**fields, **more}).encode()
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return connection


def read_to_the_end(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass
    connection.close()


def plant_long_prompts(url: str, plants: Plants, times: int, rng: np.random.Generator) -> None:
    for _ in range(times):
        prompt = rng.integers(100, 10_000, PROMPT_TOKENS).tolist()
        with plants.stretch("prefill_interference"):
            read_to_the_end(start_stream(url, prompt, 1))
        time.sleep(0.5)


def plant_busy_neighbour(plants: Plants, times: int, seconds: float) -> None:
    for _ in range(times):
        with busy_process(True):
            time.sleep(0.3)  # until it runs
            with plants.stretch("stolen_cpu"):
                time.sleep(seconds)
        time.sleep(0.5)


def plant_collections(flag: Path, plants: Plants, seconds: float) -> None:
    flag.touch()
    time.sleep(seconds)
    flag.unlink()
    time.sleep(0.5)
    for begin, end in np.fromfile(flag.with_suffix(".log"), dtype=np.int64).reshape(-1, 2).tolist():
        plants.stretches.append(Stretch("garbage_collection", begin, end))


def plant_stopped_client(url: str, plants: Plants, times: int) -> None:
    """Its events are large, so that the kernel's buffers are full within some seconds.

    What comes until then is written in time; late is the token that waits until it reads again.
    """
    for _ in range(times):
        connection = start_stream(
            url, [5, 6], OUTPUT_TOKENS, receive_buffer=4096, logprobs=20, n=STOPPED_CHOICES
        )
        head = b""
        while b'"id":"' not in head:
            head += connection.recv(4096)
        request_id = head.split(b'"id":"')[1].split(b'"')[0].decode()
        before = num_gaps(url)
        time.sleep(STOPPED_SECONDS)
        while num_gaps(url) - before < STREAMS * STOPPED_STEPS:
            time.sleep(0.5)
        again_ns = time.monotonic_ns()
        plants.stretches.append(Stretch("slow_client", again_ns, again_ns, request_id))
        while time.monotonic_ns() < again_ns + 500_000_000 and connection.recv(1 << 20):
            pass
        connection.close()


def late_gaps(url: str, num: int = 1024) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/slo?worst={num}", timeout=60) as response:
        report: dict[str, Any] = json.load(response)
    return report


def num_gaps(url: str) -> int:
    """Of all streams so far."""
    return int(late_gaps(url, 1)["itl"]["num"])


class Score:
    """Late gaps by (planted, named) cause."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str], int] = {}
        self.unexplained_ms = 0.0
        self.late_ms = 0.0

    def add(self, report: dict[str, Any], plants: Plants, begin_ns: int) -> None:
        """One planted phase: what came late in it, and what the ledger made of that."""
        for gap in report["worst_gaps"]:
            end_ns = gap["written_ns"]
            if end_ns < begin_ns:
                continue  # of the warm-up
            planted = plants.cause_of(gap["request_id"], end_ns - round(gap["ms"] * 1e6), end_ns)
            rest = {name: ms for name, ms in gap["causes"].items() if name != "base"}
            self.late_ms += sum(rest.values())
            self.unexplained_ms += rest.get("unexplained", 0.0)
            named = max(rest, key=lambda name: rest[name], default="base")
            if planted is not None:
                self.pairs[planted, named] = self.pairs.get((planted, named), 0) + 1

    def num_planted(self, cause: str) -> int:
        return sum(num for (planted, _), num in self.pairs.items() if planted == cause)

    def recall(self, cause: str) -> float:
        return 100 * self.pairs.get((cause, cause), 0) / max(self.num_planted(cause), 1)

    def precision(self, cause: str) -> float:
        named = sum(num for (_, name), num in self.pairs.items() if name == cause)
        return 100 * self.pairs.get((cause, cause), 0) / named if named else 0.0


def measure(setting: BenchSetting, causes: Sequence[str] = CAUSES) -> BarResult:
    """Each cause has a server of its own, so that the ring of late gaps holds no other's."""
    score = Score()
    rng = np.random.default_rng(1)
    num, seconds = setting.scaled(20, 2), setting.scaled(3, 1)
    details: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder) / "litter"
        os.environ["TAKT_LITTER"] = str(flag)
        for cause in causes:
            plants = Plants()
            with takt_server(setting.model, ARGUMENTS, script=SCRIPT) as server:
                _warm_up(server, rng)
                with Background(server.url):
                    begin_ns = time.monotonic_ns()
                    if cause == "prefill_interference":
                        plant_long_prompts(server.url, plants, num, rng)
                    elif cause == "stolen_cpu":
                        plant_busy_neighbour(plants, num, seconds)
                    elif cause == "garbage_collection":
                        plant_collections(flag, plants, num * seconds)
                    else:
                        plant_stopped_client(server.url, plants, max(num // 4, 1))
                report = late_gaps(server.url)
            score.add(report, plants, begin_ns)
            details[f"{cause}: late gaps"] = report["late_gaps"]["num"]
            details[f"{cause}: unexplained %"] = 100 * report["late_gaps"]["unexplained_share"]
    figures = []
    least = setting.scaled(LEAST_PLANTED, 1)
    for cause in causes:
        num_planted = float(score.num_planted(cause))
        figures.append(Figure(f"{cause}: planted", num_planted, "gaps", least, is_floor=True))
        figures.append(Figure(f"{cause}: recall", score.recall(cause), "%", 90, is_floor=True))
        name = f"{cause}: precision"
        figures.append(Figure(name, score.precision(cause), "%", 90, is_floor=True))
    share = 100 * score.unexplained_ms / max(score.late_ms, 1e-9)
    figures.append(Figure("unexplained of all late time", share, "%", 5.0))
    notes = [
        f"planted {planted}, named {named}: {count} gaps"
        for (planted, named), count in sorted(score.pairs.items())
        if planted != named
    ]
    return BarResult(figures, details, notes)


def _warm_up(server: TaktServer, rng: np.random.Generator) -> None:
    """Steps of either kind, from which the ledger learns what they take."""
    for length in (40, 150, 500, 1000, 80, 300, 700, 1500, 20, 250, 900, 1800, 60, 400):
        prompt = rng.integers(100, 10_000, length).tolist()
        read_to_the_end(start_stream(server.url, prompt, 24))
    time.sleep(1.5)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("causes", nargs="*", metavar="CAUSE", help=f"of {', '.join(CAUSES)}")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quick", action="store_true", help="few plants: no verdict to rely on")
    options = parser.parse_args()
    if unknown := set(options.causes) - set(CAUSES):
        parser.error(f"no such cause: {', '.join(unknown)}")
    setting = BenchSetting(options.model, options.quick, "")
    result = measure(setting, options.causes or CAUSES)
    table = Table("figure", "measured", "bar", "verdict")
    for figure in result.figures:
        sign = ">=" if figure.is_floor else "<="
        measured = f"{figure.value:.3g} {figure.unit}"
        table.add_row(figure.name, measured, f"{sign} {figure.bar:g}", figure.verdict.value)
    console = Console(highlight=False)
    console.print(table)
    for name, value in result.details.items():
        console.print(f"{name} {value:.4g}")
    for note in result.notes:
        console.print(note)
    return 1 if any(figure.verdict is Verdict.MISSED for figure in result.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
