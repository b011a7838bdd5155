"""The largest piece of a prompt that fits, against trying them all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from takt.scheduler.load_snapshot import LoadSnapshot, SnapshotModel
from takt.scheduler.prefill_budget import StepBound, largest_chunk, with_chunk
from takt.scheduler.step_time import StepCoefficients, StepFeatures, StepTimeModel


class Hinge:
    """Waits for memory up to a number of tokens, then for arithmetic; counts what it is asked."""

    def __init__(self, flat_ns: float, token_ns: float, pair_ns: float) -> None:
        self._flat_ns, self._token_ns, self._pair_ns = flat_ns, token_ns, pair_ns
        self.num_asked = 0

    def predict_ns(self, features: StepFeatures) -> float:
        self.num_asked += 1
        work = self._token_ns * features.num_prefill_tokens + self._pair_ns * features.num_qk_pairs
        return max(self._flat_ns + 0.01 * features.num_prefill_tokens, work)

    p99_ns = predict_ns

    def ratio(self, late_share: float) -> float:
        return 1.0

    def late_share(self, features: StepFeatures, limit_ns: float) -> float:
        return 0.0


STEP = StepFeatures(8, 0, 4000, 4000)


@settings(max_examples=200, deadline=None)
@given(
    flat=st.floats(1, 1000),
    token=st.floats(0.1, 50),
    pair=st.sampled_from([0.0, 0.001, 0.05]),
    start=st.integers(0, 3000),
    most=st.integers(0, 600),
    limit=st.floats(1, 5000),
)
def test_it_is_the_largest_that_is_within_the_limit(
    flat: float, token: float, pair: float, start: int, most: int, limit: float
) -> None:
    machine = Hinge(flat, token, pair)
    fitting = [n for n in range(1, most + 1) if machine.p99_ns(with_chunk(STEP, start, n)) <= limit]
    assert largest_chunk(machine, STEP, start, most, [StepBound(limit, 0.01)]) == max(
        fitting, default=0
    )


def test_a_straight_line_takes_few_predictions() -> None:
    machine = Hinge(0.0, 10.0, 0.0)
    assert largest_chunk(machine, STEP, 0, 512, [StepBound(1234.5, 0.01)]) == 123
    assert machine.num_asked <= 6


coefficients = st.builds(
    StepCoefficients,
    st.floats(1e5, 5e6),
    st.floats(0, 1e5),
    st.floats(0, 5e5),
    st.sampled_from([0.0, 20.0, 100.0]),
    st.sampled_from([0.0, 2.0, 30.0]),
    st.sampled_from([0.0, 3e6]),
)


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.tuples(coefficients, coefficients),
    start=st.integers(0, 3000),
    most=st.integers(1, 600),
    limit=st.floats(1e5, 1e8),
)
def test_a_forecasts_root_is_what_a_search_finds(
    pieces: tuple[StepCoefficients, StepCoefficients],
    start: int,
    most: int,
    limit: float,
) -> None:
    model = snapshot_model(pieces)
    found = model.largest_chunk(STEP, start, most, limit)
    searched = largest_chunk(Exact(pieces), STEP, start, most, [StepBound(limit, 0.01)])
    assert abs(found - searched) <= 1  # which side of the limit a time falls on may be rounding
    if found:
        assert model.predict_ns(with_chunk(STEP, start, found)) <= limit * (1 + 1e-9)


class Exact(Hinge):
    """A model's two pieces, and no step that differs."""

    def __init__(self, pieces: tuple[StepCoefficients, StepCoefficients]) -> None:
        self.predict_ns = StepTimeModel(pieces).predict_ns  # type: ignore[method-assign]


def snapshot_model(pieces: tuple[StepCoefficients, StepCoefficients]) -> SnapshotModel:
    snapshot = LoadSnapshot(
        num_taken=0,
        end_ns=0,
        is_idle=False,
        num_decode_seqs=0,
        num_kv_tokens=0,
        num_left_tokens=0,
        num_free_seats=1,
        num_free_kv_tokens=1,
        max_num_batched_tokens=512,
        tightest_itl_ns=None,
        output_share=1.0,
        prefill_token_ns=1.0,
        jobs=[],
        pieces=pieces,
        ratios=(1.0,) * 9,
        peak_ratio=1.0,
        least_chunk=4,
        room=1.0,
        mean_error=0.0,
        covered=0.99,
    )
    return SnapshotModel(snapshot)
