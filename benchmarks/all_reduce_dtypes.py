"""All-reduces that exchange rounded values, by message size, and what `auto` makes of them.

    python benchmarks/all_reduce_dtypes.py                two ranks, hidden size 640, to 512 tokens
    python benchmarks/all_reduce_dtypes.py --hidden-size 8192 --ranks 4
    python benchmarks/all_reduce_dtypes.py --quick        few rounds: a check that it runs

A thread on a CPU of its own stands for each rank. `auto` decides by one measurement, as an engine
does at its start; the times shown are of others, taken afterwards. The bar: what it chose is at no
size slower than float32, but for 5 % that two measurements differ by. Exit code 1 if it is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

from takt.ops.create import num_usable_cpus
from takt.ops.native.all_reduce_times import all_reduce_seconds
from takt.parallel.compression import ReduceFormat, fastest_of_all
from takt.parallel.cpu_topology import read_cpu_topology
from takt.parallel.pinning import cpus_per_rank

NOISE = 0.05
TOKENS = (1, 8, 32, 128, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=640, help="640: Gemma 3 270M")
    options = parser.parse_args()
    if options.ranks > min(num_usable_cpus(), len(os.sched_getaffinity(0))):
        print(f"{options.ranks} ranks would share CPUs, where auto is float32: nothing to measure")
        return
    ranks = cpus_per_rank(read_cpu_topology(), options.ranks, 1, tensor_size=options.ranks)
    cpus = [rank.cpus[0] for rank in ranks]
    sizes = [tokens * options.hidden_size for tokens in TOKENS]
    chosen = fastest_of_all(all_reduce_seconds(cpus, [sizes[0], sizes[-1]]))
    repeats = [all_reduce_seconds(cpus, sizes) for _ in range(1 if options.quick else 3)]
    print(f"{options.ranks} ranks on CPUs {cpus}, hidden size {options.hidden_size}, us")
    print(f"{'tokens':>6} {'bytes':>9} " + " ".join(f"{name:>8}" for name in ReduceFormat))
    is_slower = False
    for i, tokens in enumerate(TOKENS):
        times = {name: statistics.median(r[i][name] for r in repeats) for name in ReduceFormat}
        is_slower |= times[chosen] > (1 + NOISE) * times[ReduceFormat.PLAIN]
        cells = " ".join(f"{1e6 * times[name]:8.1f}" for name in ReduceFormat)
        print(f"{tokens:6} {4 * sizes[i]:9} {cells}")
    verdict = "missed" if is_slower else "met"
    print(f"auto chose {chosen}; nowhere slower than plain: {verdict}")
    sys.exit(1 if is_slower and not options.quick else 0)


if __name__ == "__main__":
    main()
