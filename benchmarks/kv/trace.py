"""A trace of requests for the KV pool: seeded, committed, and made again by this file.

`python -m benchmarks.kv.trace` writes `traces/kv_400_128.csv`: prompts of 400 tokens and outputs of
128 tokens on average, most prompts beginning with one of a few long system prompts.
"""

from __future__ import annotations

import csv
import random
from dataclasses import astuple, dataclass, fields
from pathlib import Path

PATH = Path(__file__).parents[1] / "traces" / "kv_400_128.csv"

SEED = 20240229
NUM_REQUESTS = 1000
REQUESTS_PER_STEP = 0.35
"""Poisson arrivals; times about 130 steps of life each, 45 requests run at a time."""
NUM_PREFIXES = 12
MAX_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """`prefix_id` names the system prompt that the first `num_prefix_tokens` are; -1 is none."""

    arrival_step: int
    prefix_id: int
    num_prefix_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int

    def prompt(self, index: int) -> list[int]:
        """Token ids, unique to request `index` after its prefix."""
        own = self.num_prompt_tokens - self.num_prefix_tokens
        shared = [1000 + self.prefix_id * 1000 + i for i in range(self.num_prefix_tokens)]
        return shared + [100_000 + index * 2000 + i for i in range(own)]


def generate() -> list[TraceRequest]:
    """The trace that is committed."""
    rng = random.Random(SEED)
    prefix_lengths = [rng.randrange(180, 380) for _ in range(NUM_PREFIXES)]
    popularity = [1 / (rank + 1) for rank in range(NUM_PREFIXES)]
    requests, time = [], 0.0
    for _ in range(NUM_REQUESTS):
        time += rng.expovariate(REQUESTS_PER_STEP)
        prefix_id = -1
        if rng.random() < 0.85:
            prefix_id = rng.choices(range(NUM_PREFIXES), popularity)[0]
        num_prefix = 0 if prefix_id < 0 else prefix_lengths[prefix_id]
        own = 1 + int(rng.expovariate(1 / (400 if prefix_id < 0 else 133)))
        num_output = min(1 + int(rng.gammavariate(4, 33.5)), MAX_OUTPUT_TOKENS)
        num_prompt = min(num_prefix + own, 1500)
        requests.append(TraceRequest(int(time), prefix_id, num_prefix, num_prompt, num_output))
    return requests


def save(requests: list[TraceRequest], path: Path = PATH) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(TraceRequest))
        writer.writerows(astuple(request) for request in requests)


def load(path: Path = PATH) -> list[TraceRequest]:
    with path.open(newline="") as file:
        rows = csv.reader(file)
        names = next(rows)
        expected = [field.name for field in fields(TraceRequest)]
        if names != expected:
            raise SystemExit(f"{path}: columns are {names}, expected {expected}")
        return [TraceRequest(*map(int, row)) for row in rows]


if __name__ == "__main__":
    save(generate())
