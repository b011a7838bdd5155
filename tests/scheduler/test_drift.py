import math
import random
from collections.abc import Callable

import pytest

from takt.scheduler.drift import Drift


def errors(ratio_of: Callable[[int], float], count: int = 4000) -> tuple[float, float]:
    """Mean of |measured / predicted - 1| with the factor that is followed, and without one."""
    drift, followed, plain = Drift(), 0.0, 0.0
    for step in range(count):
        ratio = ratio_of(step)
        followed += abs(ratio / drift.factor - 1.0)
        plain += abs(ratio - 1.0)
        drift.add(ratio)
    return followed / count, plain / count


def test_a_step_that_was_held_up_moves_nothing() -> None:
    drift = Drift()
    for ratio in [1.0] * 40 + [3.0]:
        drift.add(ratio)
    assert drift.factor == drift.shortest == 1.0


@pytest.mark.parametrize("speed", [0.6, 1.5])
def test_another_speed_is_taken_up_within_some_steps(speed: float) -> None:
    drift = Drift()
    for ratio in [1.0] * 200 + [speed] * 2:
        drift.add(ratio)
    assert drift.shortest == speed
    for _ in range(20):
        drift.add(speed)
    assert drift.factor == speed


def test_where_steps_scatter_by_themselves_hardly_anything_is_lost() -> None:
    rng = random.Random(1)
    followed, plain = errors(lambda step: math.exp(rng.gauss(0.0, 0.06)))
    assert followed <= 1.06 * plain


def test_where_the_speed_wanders_most_of_the_error_goes() -> None:
    rng, speed = random.Random(2), 1.0

    def ratio_of(step: int) -> float:
        nonlocal speed
        if step % 40 == 0:
            speed = rng.uniform(0.7, 1.4)
        return speed * math.exp(rng.gauss(0.0, 0.02))

    followed, plain = errors(ratio_of)
    assert followed <= 0.4 * plain
