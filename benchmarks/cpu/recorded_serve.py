"""`takt serve`, with the stamps of every step kept and written when it ends.

python recorded_serve.py RECORD.npz serve MODEL ...

With TAKT_PROFILE=FILE in the environment the server's process is profiled too.
"""

from __future__ import annotations

import atexit
import cProfile
import os
import sys
from array import array

import numpy as np

from takt.cli.main import main
from takt.observe.metrics import Metrics

FIELDS = (
    "schedule_start_ns",
    "run_start_ns",
    "run_end_ns",
    "update_end_ns",
    "num_decode_seqs",
    "num_prefill_tokens",
    "num_kv_tokens_read",
    "num_qk_pairs",
    "num_preempted",
    "predicted_ns",
    "predicted_p99_ns",
)


def record_steps(path: str) -> None:
    columns = {name: array("q") for name in FIELDS}
    observe = Metrics.observe_step

    def observe_and_keep(self: Metrics, stats) -> None:  # type: ignore[no-untyped-def]
        for name, column in columns.items():
            column.append(getattr(stats, name))
        observe(self, stats)

    Metrics.observe_step = observe_and_keep  # type: ignore[method-assign]

    def write() -> None:
        np.savez(path, **{n: np.array(c, dtype=np.int64) for n, c in columns.items()})

    atexit.register(write)


def profiled(path: str) -> None:
    """Profiles the thread of the event loop, and writes that too."""
    profiler = cProfile.Profile()
    atexit.register(lambda: profiler.dump_stats(path))
    profiler.enable()


if __name__ == "__main__":
    record_steps(sys.argv[1])
    if profile := os.environ.get("TAKT_PROFILE"):
        profiled(profile)
    main(sys.argv[2:])
