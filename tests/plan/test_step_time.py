import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takt.errors import ConfigError
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel

MEMORY = StepCoefficients(2e6, 3e3, 1e3, 40.0, 0.0)
COMPUTE = StepCoefficients(4e5, 2e4, 2.5e4, 5.0, 3.0)


def random_features(rng: random.Random) -> StepFeatures:
    seqs = rng.randrange(0, 65)
    prefill = rng.choice([0, 0, rng.randrange(1, 513)])
    context = seqs * rng.randrange(1, 1000)
    return StepFeatures(seqs, prefill, context + prefill, context + prefill * (prefill + 1) // 2)


def samples(noise: float, count: int = 600) -> list[tuple[StepFeatures, float]]:
    rng = random.Random(5)
    truth = StepTimeModel((MEMORY, COMPUTE))
    features = [random_features(rng) for _ in range(count)]
    return [(f, truth.predict_ns(f) * rng.lognormvariate(0.0, noise)) for f in features]


def mean_error(model: StepTimeModel, steps: list[tuple[StepFeatures, float]]) -> float:
    return sum(abs(model.predict_ns(f) / t - 1) for f, t in steps) / len(steps)


def test_two_pieces_are_recovered_from_exact_steps() -> None:
    steps = samples(0.0)
    model = StepTimeModel.fit(steps)
    assert mean_error(model, steps) < 0.01


def test_two_pieces_fit_better_than_one() -> None:
    steps = samples(0.0)
    two = StepTimeModel.fit(steps)
    decodes = [(f, t) for f, t in steps if f.num_prefill_tokens == 0]
    one = StepTimeModel.fit(decodes)
    assert mean_error(two, steps) < 0.5 * mean_error(one, steps)


def test_what_a_prompt_costs_by_itself_is_told_from_what_its_tokens_do() -> None:
    truth = StepTimeModel((MEMORY, COMPUTE._replace(prompt_ns=8e6)))
    rng = random.Random(5)
    features = [random_features(rng) for _ in range(600)]
    steps = [(f, truth.predict_ns(f)) for f in features]
    assert mean_error(StepTimeModel.fit(steps), steps) < 0.01


def test_fit_stands_noise() -> None:
    truth = StepTimeModel((MEMORY, COMPUTE))
    model = StepTimeModel.fit(samples(0.05))
    rng = random.Random(6)
    fresh = [(f, truth.predict_ns(f)) for f in (random_features(rng) for _ in range(300))]
    assert mean_error(model, fresh) < 0.03


def test_quantile_covers_its_share_of_fresh_steps() -> None:
    steps = samples(0.05, 2000)
    model = StepTimeModel.fit(steps[:1000])
    within = [t <= model.quantile_ns(f, 0.95) for f, t in steps[1000:]]
    assert 0.92 <= sum(within) / len(within) <= 0.98


def test_without_residuals_a_quantile_is_the_prediction() -> None:
    model = StepTimeModel((MEMORY, COMPUTE))
    features = StepFeatures(3, 0, 300, 300)
    assert model.quantile_ns(features, 0.99) == model.predict_ns(features)


FITTED = StepTimeModel.fit(samples(0.1, 100))


@given(st.integers(0, 100), st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_work_is_never_faster(seqs: int, prefill: int, kv_tokens: int, pairs: int) -> None:
    less = FITTED.predict_ns(StepFeatures(seqs, prefill, kv_tokens, pairs))
    for more in (
        StepFeatures(seqs + 1, prefill, kv_tokens, pairs),
        StepFeatures(seqs, prefill + 7, kv_tokens, pairs),
        StepFeatures(seqs, prefill, kv_tokens + 99, pairs),
        StepFeatures(seqs, prefill, kv_tokens, pairs + 99),
    ):
        assert FITTED.predict_ns(more) >= less


def test_steps_of_one_kind_are_fitted_too() -> None:
    steps = [(StepFeatures(n, 0, 0, 0), 1e6 + 1e4 * n) for n in range(1, 20)]
    model = StepTimeModel.fit(steps)
    assert model.predict_ns(StepFeatures(40, 0, 0, 0)) == pytest.approx(1.4e6, rel=0.01)


def test_too_few_steps_and_impossible_times_are_refused() -> None:
    step = (StepFeatures(1, 0, 10, 10), 1e6)
    with pytest.raises(ConfigError, match="4 steps are too few"):
        StepTimeModel.fit([step] * 4)
    with pytest.raises(ConfigError, match="above 0"):
        StepTimeModel.fit([step] * 5 + [(step[0], 0.0)])
    with pytest.raises(ConfigError, match="between 0 and 1"):
        StepTimeModel((MEMORY, COMPUTE)).residual_ratio(1.5)
