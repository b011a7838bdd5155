"""Who is let in, from the snapshots of a real scheduler on a virtual clock."""

from __future__ import annotations

import pytest
from gated_scheduler import MS, Served, backlog

from takt.config import SchedulerOptions
from takt.engine.gate import Gate
from takt.engine.messages import AddRequest
from takt.errors import InvalidRequestError, OverloadedError
from takt.scheduler.step_time import StepFeatures
from takt.types.sampling_params import SamplingParams


def test_an_idle_server_lets_in_what_it_can_serve_in_time() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=100.0)
    served.ask("a", 200)
    served.run()
    assert served.first_token_ns["a"] < 100 * MS


def test_a_refusal_has_its_reason_the_prediction_and_what_would_do() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=500.0)
    with pytest.raises(OverloadedError, match=r"prefill_backlog.*first token within 500 ms") as got:
        for i in range(20):
            served.ask(f"r{i}", 400)
    details = got.value.details
    assert details is not None
    assert got.value.code == details["reason"] == "prefill_backlog"
    assert details["slo"] == {"ttft_ms": 500.0, "itl_ms": 12.0}
    predicted, attainable = details["predicted"], details["attainable"]
    assert 500 < predicted["ttft_ms"] < 1500  # type: ignore[index]
    assert attainable["ttft_ms"] >= predicted["ttft_ms"]  # type: ignore[index]
    assert got.value.retry_after_seconds >= 1
    # With that target of its own it is let in.
    wanted = int(attainable["ttft_ms"]) * MS  # type: ignore[index]
    served.ask("patient", 400, slo_ttft_ns=wanted)


def test_who_is_let_in_is_in_time_however_many_ask() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=600.0)
    refused = 0
    for i in range(300):
        try:
            served.ask(f"r{i}", 100 + 37 * i % 300, 10 + i % 40)
        except OverloadedError:
            refused += 1
        for _ in range(4):
            served.step()
    served.run()
    assert 50 < refused < 250
    late = [
        name
        for name, first_ns in served.first_token_ns.items()
        if first_ns - served.arrival_ns[name] > 600 * MS
    ]
    assert len(served.first_token_ns) == 300 - refused
    assert len(late) <= 0.05 * len(served.first_token_ns)


def test_what_is_on_its_way_to_the_engine_counts() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=500.0)
    with pytest.raises(OverloadedError):
        for i in range(20):
            served.ask(f"r{i}", 400, deliver=False)
    for i in range(20):
        served.gate.ended(f"r{i}")  # their clients went away
    served.ask("next", 400)


def test_an_earlier_promise_is_not_broken_for_a_shorter_request() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=400.0)
    served.ask("long", 4000, 1, slo_ttft_ns=2_000 * MS)
    refused: list[str] = []
    for i in range(400):
        try:
            served.ask(f"r{i}", 200, 5)
        except OverloadedError as error:
            refused.append(error.code)
        for _ in range(3):
            served.step()
        if "long" in served.first_token_ns:
            break
    assert served.first_token_ns["long"] <= 2_000 * MS
    assert "earlier_promises" in refused


def test_a_costly_prompt_with_a_late_deadline_does_not_push_others_out() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    served.ask("alone", 4000, 1, slo_ttft_ns=6_000 * MS)  # nobody waits: it is let in
    served.run()
    backlog(served)
    with pytest.raises(OverloadedError, match=r"costly_prompt.*so costly a prompt is given") as got:
        served.ask("costly", 4000, 1, slo_ttft_ns=4_000 * MS)
    assert got.value.details is not None
    attainable = got.value.details["attainable"]["ttft_ms"]  # type: ignore[index]
    assert attainable > 4_000
    assert got.value.details["predicted"]["ttft_ms"] < 4_000  # type: ignore[index]
    served.ask("patient", 4000, 1, slo_ttft_ns=int(attainable * MS))


def test_on_an_idle_server_no_cost_is_too_high() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=300.0)
    for i in range(64):
        served.ask(f"r{i}", 400)
        served.run()
    served.ask("costly", 8000, 1, slo_ttft_ns=6_000 * MS)


def test_beside_streams_no_cost_is_too_high_while_no_prompt_waits() -> None:
    served = Served(slo_itl_p99_ms=8.0, slo_ttft_p99_ms=1_000.0)
    for i in range(8):
        served.ask(f"r{i}", 400, 400)
        while f"r{i}" not in served.first_token_ns:
            served.step()
    # Beside them it takes several times as long as alone, and waits for nobody.
    served.ask("costly", 4000, 1, slo_ttft_ns=8_000 * MS)


def test_prompts_that_are_refused_do_not_make_their_like_ordinary() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    backlog(served)
    for i in range(200):
        with pytest.raises(OverloadedError, match="costly_prompt"):
            served.ask(f"again{i}", 4000, 1, slo_ttft_ns=4_000 * MS)


def test_a_cheap_prompt_may_wait_as_long_as_it_likes() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    backlog(served)
    served.ask("patient", 400, slo_ttft_ns=4_000 * MS)


def test_one_that_will_be_late_anyhow_holds_nobody_off() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    served.ask("running", 50, 2_000)
    served.step()
    served.ask("late", 400, 5, priority=2**62)
    served.clock.advance(2_000 * MS)
    served.tell()
    served.ask("next", 50, 5)
    with pytest.raises(OverloadedError, match="prefill_backlog"):
        for i in range(50):
            served.ask(f"r{i}", 400, 5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_num_seqs": 2}, "max_num_seqs"), ({"num_kv_tokens": 1600}, "kv_cache")],
)
def test_seats_and_blocks_are_reasons_too(options: dict[str, int], reason: str) -> None:
    served = Served(slo_ttft_p99_ms=300.0, max_num_batched_tokens=512, **options)
    with pytest.raises(OverloadedError) as got:
        for i in range(10):
            served.ask(f"r{i}", 20, 700)
            served.step()
    assert got.value.code == reason


def test_without_a_target_of_ttft_the_batchs_peak_decides() -> None:
    served = Served(slo_itl_p99_ms=6.0)
    with pytest.raises(OverloadedError) as got:
        for i in range(30):
            served.ask(f"r{i}", 8, 400)
            served.step()
    assert got.value.code == "itl_at_peak"
    assert served.scheduler.num_running >= 8


def test_a_disturbed_machine_refuses_for_a_while_and_calls_nobody_wrong() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=5000.0)
    for i in range(200):  # one step in ten takes far longer than the target
        ms = 40 if i % 10 == 0 else 5
        served.learned.observe(StepFeatures(1, 0, 0, 0), ms * MS)
    served.tell()
    with pytest.raises(OverloadedError) as got:
        served.ask("a")
    assert got.value.retry_after_seconds >= 1
    with pytest.raises(InvalidRequestError, match=r"slo\.itl_ms is 11, .* even alone"):
        served.ask("b", slo_itl_ns=11 * MS)


def test_of_a_long_prompts_steps_one_may_be_disturbed_and_not_all() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=500.0, admission="queue")
    for i in range(200):  # one step in ten takes eight times as long
        served.learned.observe(StepFeatures(1, 0, 0, 0), (40 if i % 10 == 0 else 5) * MS)
    served.tell()
    served.ask("a", 3000, slo_ttft_ns=6_000 * MS)
    with pytest.raises(InvalidRequestError, match=r"slo.ttft_ms is 1200, .* even alone"):
        served.ask("b", 3000, slo_ttft_ns=1_200 * MS)


def test_an_engine_that_refused_everybody_gets_a_request_to_learn_from() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=100.0)
    for _ in range(12):  # the machine stood still for a while
        served.learned.observe(StepFeatures(1, 0, 0, 0), 90 * MS)
    served.tell()
    with pytest.raises(InvalidRequestError, match="even alone"):
        served.ask("a")
    served.clock.advance(6_000 * MS)
    served.ask("b")
    with pytest.raises((OverloadedError, InvalidRequestError)):
        served.ask("c", deliver=False)


def test_a_queue_lets_wait_whom_refusal_would_send_away() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=500.0, admission="queue")
    for i in range(40):
        served.ask(f"r{i}", 400)
    served.run()
    assert len(served.first_token_ns) == 40


def many(num: int, num_prompt: int = 100) -> list[AddRequest]:
    return [AddRequest(f"m{i}", [1] * num_prompt, SamplingParams(max_tokens=5)) for i in range(num)]


def test_prompts_of_one_request_are_let_in_together_or_not_at_all() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=1_000.0)
    served.gate.check(many(8), 0)
    with pytest.raises(InvalidRequestError, match=r"of the request's 30 prompts .* let in \d+ at"):
        served.gate.check(many(30), 0)
    served.ask("running", 50, 400)
    served.step()
    with pytest.raises(OverloadedError, match="prefill_backlog"):
        served.gate.check(many(30), 1)
    # What was asked for together left nothing behind.
    served.gate.check(many(8), 1)


def test_the_queue_is_bounded() -> None:
    gate = Gate(SchedulerOptions(max_num_seqs=2, max_num_waiting=3))
    request = AddRequest("a", [1], SamplingParams(max_tokens=1))
    gate.check([request], 4)
    with pytest.raises(OverloadedError, match="--max-num-waiting") as got:
        gate.check([request], 5)
    assert got.value.code == "queue_full"


def test_a_new_engine_starts_with_nothing_promised() -> None:
    served = Served(slo_itl_p99_ms=12.0, slo_ttft_p99_ms=500.0)
    with pytest.raises(OverloadedError):
        for i in range(20):
            served.ask(f"r{i}", 400, deliver=False)
    served.gate.restart()
    served.ask("before the first word of the new engine", 400, deliver=False)
