"""The gateway's bars, each measured on real processes.

    python -m benchmarks.gateway                  all of them, at full size
    python -m benchmarks.gateway --quick          all of them, small: a check, not a measurement
    python -m benchmarks.gateway faults latency   some
    python -m benchmarks.gateway faults --store redis --mode fail   one of the fault runs

Exit code 1 if a bar does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

import uvloop
from benchmarks.gateway import faults as fault_runs
from benchmarks.gateway import latency as delays
from benchmarks.gateway import other_server
from benchmarks.gateway import policies as retry_policies
from benchmarks.gateway import storm as retry_storm
from benchmarks.gateway import streams as stream_delays

STORES = ("sqlite", "redis")
MODES = ("retry", "fail", "dedup", *fault_runs.TAKT_MODES)


def faults(options: argparse.Namespace) -> bool:
    num_requests, num_clients = (300, 50) if options.quick else (10_000, 100)
    results = [
        asyncio.run(fault_runs.run(store, mode, options.requests or num_requests, num_clients))
        for store in ([options.store] if options.store else STORES)
        for mode in ([options.mode] if options.mode else MODES)
    ]
    return all(results)


def latency(options: argparse.Namespace) -> bool:
    num_requests = options.requests or (200 if options.quick else 5_000)
    return delays.added_latency(num_requests, options.cpus)


def policies(options: argparse.Namespace) -> bool:
    return retry_policies.compare()


def storm(options: argparse.Namespace) -> bool:
    return asyncio.run(retry_storm.storm(options.requests or (50 if options.quick else 1_000), 5))


def streams(options: argparse.Namespace) -> bool:
    num_streams, num_events = (50, 10) if options.quick else (500, 100)
    return uvloop.run(stream_delays.streams(options.requests or num_streams, num_events))


def other(options: argparse.Namespace) -> bool:
    return asyncio.run(other_server.run())


PARTS: dict[str, Callable[[argparse.Namespace], bool]] = {
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
    parser.add_argument("--store", choices=STORES, help="of the fault runs; both if not given")
    parser.add_argument("--mode", choices=MODES, help="of the fault runs; all if not given")
    parser.add_argument(
        "--cpus",
        choices=("shared", "own"),
        default="shared",
        help="of the latency part: all CPUs for everything, or the last for what is measured alone",
    )
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {unknown[0]}; there are {', '.join(PARTS)}")
    failed = [part for part in options.parts or PARTS if not PARTS[part](options)]
    for part in failed:
        print(f"{part}: a bar does not hold")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
