"""The gateway's bars, each measured on real processes.

    python -m benchmarks.gateway                  all of them, at full size
    python -m benchmarks.gateway --quick          all of them, small: a check, not a measurement
    python -m benchmarks.gateway faults latency   some

Exit code 1 if a bar does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

from benchmarks.gateway import faults as fault_runs
from benchmarks.gateway import latency as delays
from benchmarks.gateway import other_server
from benchmarks.gateway import policies as retry_policies

FAULT_RUNS = tuple(
    (store, mode) for store in ("sqlite", "redis") for mode in ("retry", "fail", "dedup", "takt")
)


def faults(quick: bool, requests: int | None) -> bool:
    num_requests, num_clients = (300, 50) if quick else (10_000, 100)
    results = [
        asyncio.run(fault_runs.run(store, mode, requests or num_requests, num_clients))
        for store, mode in FAULT_RUNS
    ]
    return all(results)


def latency(quick: bool, requests: int | None) -> bool:
    return asyncio.run(delays.added_latency(requests or (200 if quick else 5_000), 1))


def policies(quick: bool, requests: int | None) -> bool:
    return retry_policies.compare()


def storm(quick: bool, requests: int | None) -> bool:
    return asyncio.run(delays.storm(requests or (50 if quick else 1_000), 5))


def streams(quick: bool, requests: int | None) -> bool:
    num_streams, num_events = (50, 10) if quick else (500, 100)
    return asyncio.run(delays.streams(requests or num_streams, num_events))


def other(quick: bool, requests: int | None) -> bool:
    return asyncio.run(other_server.run())


PARTS: dict[str, Callable[[bool, int | None], bool]] = {
    "faults": faults,
    "latency": latency,
    "policies": policies,
    "storm": storm,
    "streams": streams,
    "other": other,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--requests", type=int, help="instead of the part's own number")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {unknown[0]}; there are {', '.join(PARTS)}")
    failed = [
        part for part in options.parts or PARTS if not PARTS[part](options.quick, options.requests)
    ]
    for part in failed:
        print(f"{part}: a bar does not hold")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
