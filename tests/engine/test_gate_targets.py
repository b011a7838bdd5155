"""The targets that a refusal offers, and those that nobody could meet."""

from __future__ import annotations

import random

import pytest
from gated_scheduler import MS, Served, backlog

from takt.errors import InvalidRequestError, OverloadedError


@pytest.mark.parametrize("seed", range(20))
def test_whoever_asks_again_with_the_attainable_target_is_let_in(seed: int) -> None:
    rng = random.Random(seed)
    served = Served(
        slo_itl_p99_ms=rng.choice([6.0, 12.0]), slo_ttft_p99_ms=rng.choice([400.0, 1_000.0])
    )
    reasons: set[str] = set()
    for i in range(40):
        size = (rng.choice([50, 400, 3000]), rng.choice([1, 20, 400]))
        target_ms = rng.choice([None, 700, 2_500, 6_000, 20_000])
        own = {} if target_ms is None else {"slo_ttft_ns": target_ms * MS}
        level = {"priority": rng.choice([0, 0, 1, 3])}
        try:
            served.ask(f"r{i}", *size, **level, **own)
        except InvalidRequestError:
            pass  # that would be late even alone
        except OverloadedError as error:
            assert error.details is not None
            attainable = error.details["attainable"]["ttft_ms"]  # type: ignore[index]
            reasons.add(error.code)
            served.ask(f"again{i}", *size, **level, slo_ttft_ns=int(attainable) * MS)
        for _ in range(rng.choice([0, 0, 5])):
            served.step()
    assert reasons


def test_what_no_target_helps_has_none_that_is_attainable() -> None:
    """Of a request that goes before all others, whatever its target."""
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    backlog(served)
    with pytest.raises(OverloadedError, match="others that were let in before") as got:
        for i in range(20):
            served.ask(f"first{i}", 400, slo_ttft_ns=5_000 * MS, priority=-1)
    assert got.value.code == "earlier_promises"
    assert got.value.details is not None
    assert got.value.details["attainable"]["ttft_ms"] is None  # type: ignore[index]


def test_a_refusal_names_the_target_that_it_was_asked() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    backlog(served)
    with pytest.raises(OverloadedError, match=r"prefill_backlog.*within 2200 ms \(predicted"):
        served.ask("costly", 4000, 1, slo_ttft_ns=2_200 * MS)


def test_with_the_attainable_target_a_place_behind_others_is_in_time_too() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    backlog(served)
    for i in range(12):
        served.ask(f"patient{i}", 400, slo_ttft_ns=30_000 * MS)
    with pytest.raises(OverloadedError, match="costly_prompt") as got:
        served.ask("costly", 3000, 1, slo_ttft_ns=4_000 * MS)
    assert got.value.details is not None
    attainable = got.value.details["attainable"]["ttft_ms"]  # type: ignore[index]
    served.ask("costly", 3000, 1, slo_ttft_ns=int(attainable * MS))


@pytest.mark.parametrize("admission", ["queue", "refuse"])
def test_a_target_tighter_than_an_idle_server_gives_is_an_error(admission: str) -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=5000.0, admission=admission)
    with pytest.raises(InvalidRequestError, match=r"slo.itl_ms is 2, .* take 3\.\d+ ms") as itl:
        served.ask("a", slo_itl_ns=2 * MS)
    with pytest.raises(InvalidRequestError, match=r"slo.ttft_ms is 50, .* even alone") as ttft:
        served.ask("b", 1000, slo_ttft_ns=50 * MS)
    assert (itl.value.param, ttft.value.param) == ("slo.itl_ms", "slo.ttft_ms")
    assert itl.value.code == ttft.value.code == "slo_unattainable"
    # The figures that they name are let in.
    enough_itl, enough_ttft = (float(str(e.value).split()[-1]) for e in (itl, ttft))
    assert 3 < enough_itl < 4 and 400 < enough_ttft < 500
    served.ask("a", slo_itl_ns=round(enough_itl * MS))
    served.run()
    served.ask("b", 1000, slo_ttft_ns=round(enough_ttft * MS))


def test_a_request_without_gaps_cannot_miss_a_target_of_gaps() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=5000.0)
    served.ask("one", max_tokens=1, slo_itl_ns=1)
    served.ask("none", max_tokens=0, slo_itl_ns=1)
