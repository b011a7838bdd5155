"""What every store does, asked of each with the same words."""

from __future__ import annotations

import asyncio

import pytest
from store_driver import LEASE_MS, OK, TTL_MS, StoreDriver, identity, success, terms

from takt.gateway.states import (
    OUTCOME_UNKNOWN,
    REPLAY_INTERRUPTED,
    Attempt,
    Claimed,
    Finish,
    Mismatch,
    OnUnknown,
    Running,
    Settled,
    State,
)
from takt.gateway.store.base import Held


def claimed(driver: StoreDriver, **changes: object) -> Claimed:
    claim = driver.claim(**changes)  # type: ignore[arg-type]
    assert isinstance(claim, Claimed)
    return claim


def test_first_claim_gets_the_lease_and_the_second_waits(driver: StoreDriver) -> None:
    first = claimed(driver)
    assert first == Claimed(first.token, 1, False, False, "")
    assert driver.claim() == Running(first.token)
    assert driver.state() is State.PROCESSING


def test_another_body_under_the_same_key_is_a_mismatch_in_every_state(driver: StoreDriver) -> None:
    token = claimed(driver).token
    assert driver.claim(fingerprint="g") == Mismatch()
    driver.finish(token, success(b"x"))
    assert driver.claim(fingerprint="g") == Mismatch()


def test_a_claim_sent_twice_is_one_claim(driver: StoreDriver) -> None:
    one = terms()
    first = driver.run(driver.store.claim(identity(), one))
    second = driver.run(driver.store.claim(identity(), one))
    assert isinstance(first, Claimed)
    assert second == first
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.record.num_attempts == 1


def test_result_survives_a_new_process(driver: StoreDriver) -> None:
    token = claimed(driver).token
    assert driver.finish(token, success(b"\x00a", b"b\xff"))
    driver.reopen()
    assert driver.claim() == Settled(State.SUCCEEDED)
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"\x00a", b"b\xff")
    assert snapshot.record.head == OK
    assert snapshot.record.num_chunks == 2


def test_finish_sent_twice_has_one_effect(driver: StoreDriver) -> None:
    token = claimed(driver).token
    end = success(b"a", attempt=Attempt(1, "u", "reset", 3))
    assert driver.finish(token, end)
    assert driver.finish(token, end)
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"a",)
    assert len(snapshot.record.history) == 1


def test_expired_lease_is_taken_over_and_the_former_holder_is_fenced(driver: StoreDriver) -> None:
    old = claimed(driver, upstream="http://one")
    held = Held("d", old.token)
    assert driver.run(driver.store.append(held, OK, 0, [b"old"]))
    driver.advance(LEASE_MS)
    new = claimed(driver, upstream="http://two")
    assert new.token > old.token
    assert (new.taken_over, new.was_in_flight, new.upstream) == (True, True, "http://one")
    assert new.num_attempts == 2
    assert not driver.run(driver.store.append(held, OK, 1, [b"late"]))
    assert not driver.run(driver.store.begin_attempt(held, "u", False))
    assert not driver.run(driver.store.end_attempt(held, Attempt(1, "u", "reset", 1)))
    assert driver.run(driver.store.heartbeat([held, Held("d", new.token)], LEASE_MS)) == [
        False,
        True,
    ]
    assert not driver.finish(old.token, success(b"old"))
    assert driver.finish(new.token, success(b"new"))
    assert not driver.finish(old.token, success(b"old"))
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"new",)
    assert snapshot.record.num_unknown == 1


def test_heartbeat_keeps_a_lease(driver: StoreDriver) -> None:
    token = claimed(driver).token
    for _ in range(3):
        driver.advance(LEASE_MS - 1)
        assert driver.run(driver.store.heartbeat([Held("d", token)], LEASE_MS)) == [True]
    assert driver.claim() == Running(token)


def test_a_sign_of_life_keeps_the_record_of_a_request_that_outlives_its_time(
    driver: StoreDriver,
) -> None:
    held = Held("d", claimed(driver, ttl_ms=1_000).token)
    driver.advance(900)
    assert driver.run(driver.store.heartbeat([held], LEASE_MS)) == [True]
    driver.advance(LEASE_MS - 1)
    assert driver.claim() == Running(held.token)
    driver.advance(LEASE_MS - 1)
    assert driver.finish(held.token, success(b"late"))
    driver.advance(1_000)
    assert driver.state() is State.SUCCEEDED


def test_expired_lease_stays_where_takeover_is_not_allowed(driver: StoreDriver) -> None:
    token = claimed(driver).token
    driver.advance(LEASE_MS)
    assert driver.claim(allow_takeover=False) == Running(token)
    assert driver.finish(token, success(b"late, but nobody else has it"))


def test_holder_of_an_expired_lease_that_nobody_took_may_finish(driver: StoreDriver) -> None:
    token = claimed(driver).token
    driver.advance(10 * LEASE_MS)
    assert driver.finish(token, success(b"x"))
    assert driver.claim() == Settled(State.SUCCEEDED)


def test_unknown_outcome_is_settled_where_it_must_not_be_repeated(driver: StoreDriver) -> None:
    token = claimed(driver).token
    driver.advance(LEASE_MS)
    fail = {"on_unknown": OnUnknown.FAIL}
    assert driver.claim(**fail) == Settled(State.FAILED_FINAL, settled_now=True)
    assert driver.claim(**fail) == Settled(State.FAILED_FINAL)
    assert not driver.finish(token, success(b"late"))
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.record.cause == OUTCOME_UNKNOWN
    assert snapshot.record.num_unknown == 1


def test_deduplicating_upstream_is_asked_again_even_then(driver: StoreDriver) -> None:
    claimed(driver, deduplicates=True)
    driver.advance(LEASE_MS)
    assert claimed(driver, on_unknown=OnUnknown.FAIL).was_in_flight


def test_death_between_attempts_leaves_nothing_unknown(driver: StoreDriver) -> None:
    token = claimed(driver).token
    attempt = Attempt(1, "http://u", "connect", 5)
    assert driver.run(driver.store.end_attempt(Held("d", token), attempt))
    assert driver.run(driver.store.end_attempt(Held("d", token), attempt))
    driver.advance(LEASE_MS)
    claim = claimed(driver, on_unknown=OnUnknown.FAIL)
    assert claim.taken_over
    assert not claim.was_in_flight
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.record.history == (attempt,)
    assert snapshot.record.num_unknown == 0


def test_further_attempts_are_counted_once_each(driver: StoreDriver) -> None:
    held = Held("d", claimed(driver).token)
    driver.run(driver.store.end_attempt(held, Attempt(1, "u", "reset", 5)))
    assert driver.run(driver.store.begin_attempt(held, "http://other", True))
    assert driver.run(driver.store.begin_attempt(held, "http://other", True))
    snapshot = driver.read()
    assert snapshot is not None
    record = snapshot.record
    assert (record.num_attempts, record.upstream, record.deduplicates, record.in_flight) == (
        2,
        "http://other",
        True,
        True,
    )


def test_retryable_failure_is_claimed_anew_and_keeps_its_history(driver: StoreDriver) -> None:
    first = claimed(driver)
    attempt = Attempt(1, "u", "timeout", 9, status=504)
    end = Finish(state=State.FAILED_RETRYABLE, ttl_ms=TTL_MS, cause="deadline", attempt=attempt)
    assert driver.finish(first.token, end)
    second = claimed(driver)
    assert second.token > first.token
    assert not second.taken_over
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.record.history == (attempt,)


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED_FINAL, State.DEAD])
def test_settled_states_end_with_their_time_to_live(driver: StoreDriver, state: State) -> None:
    token = claimed(driver).token
    driver.finish(token, success(b"x", state=state, ttl_ms=5_000))
    driver.advance(4_999)
    assert driver.claim() == Settled(state)
    driver.advance(1)
    assert driver.state() is State.ABSENT
    again = claimed(driver)
    assert again.token > token, "a token is never given twice, even to a record begun anew"
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == ()


def test_running_answer_grows_chunk_by_chunk(driver: StoreDriver) -> None:
    held = Held("d", claimed(driver).token)
    assert driver.run(driver.store.append(held, OK, 0, [b"a", b"b"]))
    assert driver.run(driver.store.append(held, OK, 0, [b"a", b"b"])), "sent again"
    assert driver.run(driver.store.append(held, OK, 2, [b"c"]))
    snapshot = driver.run(driver.store.read("d", 1))
    assert snapshot is not None
    assert snapshot.chunks == (b"b", b"c")
    assert snapshot.record.is_lease_alive
    assert driver.finish(held.token, success(b"d", first_chunk=3))
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"a", b"b", b"c", b"d")
    assert not snapshot.record.is_lease_alive


def test_an_answer_begun_and_failed_leaves_no_chunk_behind(driver: StoreDriver) -> None:
    held = Held("d", claimed(driver).token)
    driver.run(driver.store.append(held, OK, 0, [b"half"]))
    assert driver.finish(held.token, success(b"error", state=State.FAILED_FINAL))
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"error",)


def dead(driver: StoreDriver, digest: str, ttl_ms: int = TTL_MS) -> int:
    token = claimed(driver, digest=digest).token
    end = success(b"e", state=State.DEAD, cause="tries", request=b"sealed", ttl_ms=ttl_ms)
    assert driver.finish(token, end, digest)
    driver.advance(1)
    return token


def test_dead_letters_are_listed_oldest_first_revived_and_purged(driver: StoreDriver) -> None:
    for digest in ("one", "two", "three"):
        dead(driver, digest)
    store = driver.store
    listed = driver.run(store.dead_letters(10))
    assert [record.digest for record in listed] == ["one", "two", "three"]
    assert [r.digest for r in driver.run(store.dead_letters(2))] == ["one", "two"]
    assert driver.run(store.dead_letters(10, "other")) == []
    assert driver.run(store.request_of("one")) == b"sealed"
    revived = driver.run(store.revive("one", terms()))
    assert isinstance(revived, Claimed)
    assert driver.run(store.revive("one", terms())) is None
    assert driver.run(store.num_dead()) == 2
    assert driver.finish(revived.token, success(b"at last"), "one")
    assert driver.claim(digest="one") == Settled(State.SUCCEEDED)
    assert driver.run(store.purge(["one", "two", "none"])) == 1
    assert driver.state("two") is State.ABSENT
    assert driver.state("one") is State.SUCCEEDED
    assert driver.run(store.request_of("two")) is None


def test_only_a_success_ends_a_letter_that_is_replayed(driver: StoreDriver) -> None:
    dead(driver, "d")
    store = driver.store
    revived = driver.run(store.revive("d", terms()))
    assert isinstance(revived, Claimed)
    assert driver.run(store.request_of("d")) == b"sealed"
    assert driver.run(store.dead_letters(10)) == []
    assert driver.run(store.purge(["d"])) == 0
    assert driver.claim() == Running(revived.token)
    end = Finish(state=State.DEAD, ttl_ms=TTL_MS, cause="again")
    assert driver.finish(revived.token, end)
    assert [one.cause for one in driver.run(store.dead_letters(10))] == ["again"]
    assert driver.run(store.num_dead()) == 1
    revived = driver.run(store.revive("d", terms()))
    assert isinstance(revived, Claimed)
    assert driver.finish(revived.token, success(b"at last"))
    assert driver.run(store.request_of("d")) is None
    assert driver.run(store.dead_letters(10)) == []


@pytest.mark.parametrize("call", ["claim", "list", "revive", "purge"])
def test_a_letter_whose_replay_was_killed_is_dead_again(driver: StoreDriver, call: str) -> None:
    dead(driver, "d")
    store = driver.store
    revived = driver.run(store.revive("d", terms()))
    assert isinstance(revived, Claimed)
    driver.advance(LEASE_MS)
    assert driver.claim(allow_takeover=False) == Running(revived.token)
    if call == "claim":
        assert driver.claim() == Settled(State.DEAD)
    elif call == "revive":
        again = driver.run(store.revive("d", terms()))
        assert isinstance(again, Claimed)
        assert not again.taken_over
        driver.advance(LEASE_MS)
    elif call == "purge":
        assert driver.run(store.purge(["d"])) == 1
        assert driver.state() is State.ABSENT
        return
    listed = driver.run(store.dead_letters(10))
    assert [one.cause for one in listed] == [REPLAY_INTERRUPTED]
    assert listed[0].num_unknown == (2 if call == "revive" else 1)
    assert driver.run(store.num_dead()) == 1
    assert driver.run(store.request_of("d")) == b"sealed"
    assert not driver.finish(revived.token, success(b"too late")), "its holder has lost it"
    assert driver.state() is State.DEAD


def test_a_letter_without_its_request_is_not_revived(driver: StoreDriver) -> None:
    token = claimed(driver).token
    driver.finish(token, success(b"e", state=State.DEAD))
    assert driver.run(driver.store.revive("d", terms())) is None
    assert driver.state() is State.DEAD


def test_sweep_forgets_what_has_ended(driver: StoreDriver) -> None:
    dead(driver, "short", ttl_ms=10)
    dead(driver, "long")
    driver.advance(10)
    assert driver.run(driver.store.sweep(100)) == 1
    assert driver.run(driver.store.num_dead()) == 1
    assert driver.state("long") is State.DEAD


def test_absent_record_is_nobodys(driver: StoreDriver) -> None:
    assert driver.read("nothing") is None
    assert not driver.finish(7, success(b"x"), "nothing")
    assert driver.run(driver.store.heartbeat([Held("nothing", 1)], LEASE_MS)) == [False]
    assert driver.run(driver.store.heartbeat([], LEASE_MS)) == []


@pytest.mark.parametrize("call", ["ping", "num_dead", "dead_letters", "sweep"])
def test_a_cancellation_is_never_lost(driver: StoreDriver, call: str) -> None:
    """What calls again and again would go on for ever."""
    arguments = [1] if call in ("dead_letters", "sweep") else []

    async def cancel_after(num_turns: int) -> bool:
        task = asyncio.ensure_future(getattr(driver.store, call)(*arguments))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        was_asked = task.cancel()
        await asyncio.wait([task])
        return was_asked and not task.cancelled()

    driver.run(driver.store.ping())
    assert [n for n in range(30) if driver.run(cancel_after(n))] == []
