"""Numbers of steps that tell which replica made a step."""

from __future__ import annotations

STEPS_PER_REPLICA = 10**12
"""A replica's numbers never reach the next one's: a step a microsecond for eleven days."""


def first_step_id(replica: int, num_replicas: int) -> int:
    """Number of a replica's first step. One engine alone counts from 0."""
    # Room below it: "the step before the first" is still the same replica's.
    return 0 if num_replicas == 1 else replica * STEPS_PER_REPLICA + 1


def replica_of(step_id: int) -> int:
    """Whose step it is."""
    return step_id // STEPS_PER_REPLICA
