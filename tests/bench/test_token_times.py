from __future__ import annotations

import numpy as np
import pytest

from bench_records import make_record
from takt.bench.request_times import request_times
from takt.bench.token_times import Granularity, token_times


def test_an_event_per_token_counts_empty_ones() -> None:
    times = token_times(make_record([5, 7, 9], texts=[True, False, True]))
    assert times.granularity is Granularity.TOKEN
    assert len(times.stamps_ns) == times.num_tokens == 3


def test_a_bare_last_event_is_no_token_if_the_usage_says_so() -> None:
    record = make_record([5, 7, 9], texts=[True, True, False], num_output=2)
    times = token_times(record)
    assert times.granularity is Granularity.TOKEN
    assert len(times.stamps_ns) == 2


def test_a_bare_last_event_is_a_token_if_the_usage_says_so() -> None:
    record = make_record([5, 7, 9], texts=[True, True, False], num_output=3)
    assert len(token_times(record).stamps_ns) == 3


def test_batched_chunks_are_reported_as_such() -> None:
    record = make_record([5, 7, 9, 11], texts=[True, True, False, False], num_output=12)
    times = token_times(record)
    assert times.granularity is Granularity.CHUNK
    assert times.num_tokens == 12
    assert len(times.stamps_ns) == 2
    assert not times.has_surplus


def test_more_texts_than_tokens_are_a_surplus() -> None:
    assert token_times(make_record([5, 7, 9], num_output=1)).has_surplus


def test_without_usage_each_event_is_a_token_but_a_bare_end() -> None:
    record = make_record([5, 7, 9], texts=[True, True, False], num_output=None)
    times = token_times(record)
    assert times.granularity is Granularity.UNKNOWN
    assert times.num_tokens == 2
    no_end = make_record([5, 7], texts=[True, False], num_output=None, finish_reason=None)
    assert token_times(no_end).num_tokens == 2


def test_a_single_token_has_no_tpot_and_no_gap() -> None:
    times = request_times(make_record([5]))
    assert times.ttft_ms == times.e2e_ms == 5
    assert times.tpot_ms is None
    assert len(times.gaps_ms) == 0
    assert times.largest_gap_ms == 0


def test_latencies_of_a_request() -> None:
    times = request_times(make_record([5, 7, 17, 18], num_prompt=None))
    assert times.ttft_ms == pytest.approx(5)
    assert times.e2e_ms == pytest.approx(18)
    np.testing.assert_allclose(times.gaps_ms, [2, 10, 1])
    assert times.largest_gap_ms == pytest.approx(10)
    assert times.tpot_ms == pytest.approx(13 / 3)
    assert times.num_prompt_tokens == 10


def test_tpot_of_chunks_is_per_token() -> None:
    times = request_times(make_record([5, 25], num_output=11))
    assert times.tpot_ms == pytest.approx(2.0)
