"""The step log of a service whose steps take what a model says."""

from __future__ import annotations

import numpy as np

from logged_step import step
from takt.observe.step_log import LoggedStep
from takt.plan.simulate.simulator import SimulatedServer
from takt.scheduler.step_time import StepFeatures, StepTimeModel

MS = 1_000_000


def simulated_log(server: SimulatedServer) -> list[LoggedStep]:
    """Steps as such a service logs them, of many kinds, one after the other."""
    rng = np.random.default_rng(3)
    assert isinstance(server.duration, StepTimeModel)
    steps, now = [], 0.0
    for _ in range(300):
        seqs, prefill = int(rng.integers(0, 24)), int(rng.choice([0, 0, 16, 60, 200]))
        if seqs + prefill == 0:
            continue
        contexts = int(seqs * rng.integers(60, 80) + prefill)
        pairs = contexts + prefill * prefill // 2
        features = (seqs, prefill, contexts, pairs)
        end = now + server.duration.predict_ns(StepFeatures(*features)) / MS
        steps.append(
            step(
                now,
                end,
                num_decode_seqs=seqs,
                num_prefill_tokens=prefill,
                num_kv_tokens_read=contexts,
                num_qk_pairs=pairs,
                num_running=1,
                kv_blocks_total=server.num_kv_tokens // 16,
            )
        )
        now = end
    return steps
