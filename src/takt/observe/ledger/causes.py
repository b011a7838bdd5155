"""What the time of a late token is split over."""

from __future__ import annotations

import enum


class Cause(enum.IntEnum):
    """Columns of every split, in the order in which they are shown."""

    BASE = 0
    PREFILL_INTERFERENCE = 1
    BATCH_GROWTH = 2
    PREEMPTION = 3
    QUEUEING = 4
    ENGINE_HOST = 5
    STOLEN_CPU = 6
    CONTENTION = 7
    GARBAGE_COLLECTION = 8
    SLOW_CLIENT = 9
    DELIVERY = 10
    UNEXPLAINED = 11

    @property
    def label(self) -> str:
        """As it stands in JSON and in labels of metrics."""
        return self.name.lower()


NUM_CAUSES = len(Cause)

MEANINGS: dict[Cause, str] = {
    Cause.BASE: "the sequence's own computation, as predicted for it alone",
    Cause.PREFILL_INTERFERENCE: "prompts of others computed in the same steps",
    Cause.BATCH_GROWTH: "decodes of others in the same steps",
    Cause.PREEMPTION: "the sequence lost its KV blocks and was computed again",
    Cause.QUEUEING: "waiting for a place in a step",
    Cause.ENGINE_HOST: "the engine's Python between two runs of the program",
    Cause.STOLEN_CPU: "threads of engine and server that wanted a CPU and had none",
    Cause.CONTENTION: "the same work took the threads more CPU time: slower memory, caches or core",
    Cause.GARBAGE_COLLECTION: "Python's garbage collection, in the engine or in the server",
    Cause.SLOW_CLIENT: "the socket took no more because its client did not read",
    Cause.DELIVERY: "from the engine's message to the socket: event loop, text, JSON",
    Cause.UNEXPLAINED: "nothing that was measured or predicted accounts for it",
}
