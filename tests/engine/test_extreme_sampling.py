"""Numbers that no column of a step could hold: served by their meaning or refused, never fatal."""

from __future__ import annotations

from typing import Any

import pytest
from core_driver import Collector, make_core

from takt.engine.messages import AddRequest
from takt.errors import InvalidRequestError
from takt.types.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "extreme",
    [
        {"top_k": 2**31},
        {"top_k": 2**62},
        {"temperature": 1e39},
        {"temperature": 1.7e308},
        {"temperature": 5e-324},
        {"top_p": 5e-324},
        {"min_p": 5e-324},
        {"repetition_penalty": 1e6},
        {"repetition_penalty": 1e-6},
        {"seed": 2**64 - 1},
    ],
)
def test_extreme_value_is_served(extreme: dict[str, Any]) -> None:
    core, collector = make_core(), Collector()
    core.add(AddRequest("r", [1, 2, 3], SamplingParams(max_tokens=2, **extreme)))
    while core.has_work:
        collector.step(core)
    assert collector.choices["r", 0].finish_reason == "length"


@pytest.mark.parametrize("penalty", [1e39, 1.1e6, 0.0, 1e-39, 5e-324, float("inf"), float("nan")])
def test_penalty_that_leaves_fp32_is_refused(penalty: float) -> None:
    with pytest.raises(InvalidRequestError, match="repetition_penalty must be at least"):
        SamplingParams(repetition_penalty=penalty)
