"""How a worker process talks to the benchmark: a JSON object a line, in and out.

Workers run in other engines' environments and import nothing of Takt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class Engine(Protocol):
    """An engine that is stepped; every step may give a token to each of its sequences."""

    def add(self, slot: int, prompt: list[int], num_output: int) -> None:
        """Starts a request under a free slot's number."""
        ...

    def step(self) -> tuple[list[int], list[int]]:
        """Slots that got a token in this step, and those that ended with it."""
        ...


class OneByOne(Protocol):
    """An engine that only takes one request at a time."""

    def generate(self, prompt: list[int], num_output: int) -> dict[str, Any]:
        """A request from its start to its end: `start_ns` and `stamps`."""
        ...


def serve(load: Callable[[dict[str, Any]], Engine | OneByOne | None]) -> None:
    """Answers commands until standard input ends: what loads an engine, then runs.

    `load` gives no engine where the settings only ask for a file to be made.
    """
    # Libraries print where they like: only our answers go to the real standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine: Engine | OneByOne | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if engine is None:
                engine = load(command["settings"])
                answer: dict[str, Any] = {"ok": True}
            else:
                prompts, num_output = command["prompts"], command["num_output"]
                answer = {"requests": run(engine, prompts, command["streams"], num_output)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def run(
    engine: Engine | OneByOne, prompts: list[list[int]], streams: int, num_output: int
) -> list[dict[str, Any]]:
    """A closed loop; `start_ns` is when a request was given to the engine, `stamps` its tokens."""
    if hasattr(engine, "generate"):
        return [engine.generate(prompt, num_output) for prompt in prompts]
    waiting = deque(enumerate(prompts))
    results: list[dict[str, Any]] = [{"start_ns": 0, "stamps": []} for _ in prompts]
    request_of: dict[int, int] = {}
    free = list(range(streams))
    while waiting or request_of:
        while waiting and free:
            index, prompt = waiting.popleft()
            slot = free.pop()
            request_of[slot] = index
            results[index]["start_ns"] = time.monotonic_ns()
            engine.add(slot, prompt, num_output)
        advanced, ended = engine.step()
        now_ns = time.monotonic_ns()
        for slot in advanced:
            results[request_of[slot]]["stamps"].append(now_ns)
        for slot in ended:
            del request_of[slot]
            free.append(slot)
    return results
