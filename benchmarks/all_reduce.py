"""All-reduce of the native communicator against gloo, both between processes, in turns.

    python benchmarks/all_reduce.py            2 ranks, 2.3 KB: the bar is 5 times faster
    python benchmarks/all_reduce.py --quick    few rounds: a check that it runs

Exit code 1 if the bar does not hold. Gloo comes with torch (extra `torch`).
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from takt import _native

BAR = 5.0
SPIN_NS = 200_000
_ABORT_LINE = 64


def rank_main(rank: int, options: argparse.Namespace, fd: int, out: Connection) -> None:
    """Measures the two in blocks, in turns, and sends microseconds of each call."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if options.ranks <= _native.num_usable_cpus():
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    slot_bytes = max(options.bytes, 64)
    size = _ABORT_LINE + _native.Communicator.bytes(options.ranks, slot_bytes)
    segment = np.frombuffer(mmap.mmap(fd, size), dtype=np.uint8)
    spin_ns = SPIN_NS if options.ranks <= _native.num_usable_cpus() else 0
    group = _native.Communicator(segment, _ABORT_LINE, rank, options.ranks, slot_bytes, spin_ns)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{options.port}", rank=rank, world_size=options.ranks
    )
    values = np.full(options.bytes // 4, 1.0, dtype=np.float32)
    tensor = torch.from_numpy(values.copy())

    def native() -> None:
        group.all_reduce(values)

    def gloo() -> None:
        dist.all_reduce(tensor)

    times: dict[str, list[float]] = {"native": [], "gloo": []}
    for _ in range(options.turns):
        for name, call in (("native", native), ("gloo", gloo)):
            values.fill(1.0)
            tensor.fill_(1.0)
            times[name] += measure(call, options.rounds)
    values.fill(rank + 1.0)
    native()
    assert values[0] == options.ranks * (options.ranks + 1) / 2, "a wrong sum"
    if rank == 0:
        out.send(times)
    dist.destroy_process_group()


def measure(call: Callable[[], None], rounds: int) -> list[float]:
    """Microseconds of each of `rounds` calls, after a few that are not counted."""
    for _ in range(20):
        call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=2304, help="576 floats: a row of SmolLM2")
    parser.add_argument("--port", type=int, default=29_517)
    options = parser.parse_args()
    options.turns, options.rounds = (2, 50) if options.quick else (10, 500)
    fd = os.memfd_create("takt-all-reduce")
    slot_bytes = max(options.bytes, 64)
    os.truncate(fd, _ABORT_LINE + _native.Communicator.bytes(options.ranks, slot_bytes))
    # Forked before any thread exists, so that the descriptor is theirs too.
    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    ranks = [
        context.Process(target=rank_main, args=(rank, options, fd, send))
        for rank in range(options.ranks)
    ]
    for each in ranks:
        each.start()
    times = receive.recv()
    for each in ranks:
        each.join()
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        p99 = sorted(values)[len(values) * 99 // 100]
        print(f"{name:7} P50 {medians[name]:8.1f} us  P99 {p99:8.1f} us  ({len(values)} calls)")
    ratio = medians["gloo"] / medians["native"]
    verdict = "met" if ratio >= BAR else "missed"
    print(
        f"{options.ranks} ranks, {options.bytes} bytes: {ratio:.1f} times faster than gloo "
        f"(bar: {BAR:g}): {verdict}"
    )
    sys.exit(0 if ratio >= BAR or options.quick else 1)


if __name__ == "__main__":
    main()
