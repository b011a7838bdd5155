"""Writes the trace of upstream faults on which retry policies are compared.

    python -m benchmarks.gateway.trace > benchmarks/traces/gateway_faults.csv

The trace was made, and committed, before any policy was tuned on it. It holds an hour of an
upstream's bad times; outside of them `BACKGROUND` of the attempts fail. Four kinds, each a Poisson
process: restarts (1 to 4 s in which no connection is accepted), overload (5 to 30 s in which half
of the attempts are refused with Retry-After), brown-outs (10 to 40 s in which three in ten attempts
end in 500) and outages (10 to 45 s in which nothing works).
"""

from __future__ import annotations

import csv
import random
import sys
from dataclasses import dataclass

SEED = 20
DURATION_SECONDS = 3600
BACKGROUND = 0.005


@dataclass(frozen=True)
class Kind:
    name: str
    every_seconds: float
    shortest_seconds: float
    longest_seconds: float
    share: float
    status: int
    retry_after_seconds: int


KINDS = (
    Kind("restart", 120, 1, 4, 1.0, 0, 0),
    Kind("overload", 300, 5, 30, 0.5, 503, 1),
    Kind("brownout", 400, 10, 40, 0.3, 500, 0),
    Kind("outage", 900, 10, 45, 1.0, 502, 0),
)


def main() -> None:
    rng = random.Random(SEED)
    rows = []
    for kind in KINDS:
        at = rng.expovariate(1 / kind.every_seconds)
        while at < DURATION_SECONDS:
            length = rng.uniform(kind.shortest_seconds, kind.longest_seconds)
            rows.append((round(at, 2), round(at + length, 2), kind))
            at += length + rng.expovariate(1 / kind.every_seconds)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["start_s", "end_s", "kind", "share", "status", "retry_after_s"])
    for start, end, kind in sorted(rows, key=lambda row: row[0]):
        writer.writerow([start, end, kind.name, kind.share, kind.status, kind.retry_after_seconds])


if __name__ == "__main__":
    main()
