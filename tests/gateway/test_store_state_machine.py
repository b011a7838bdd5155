"""The state machine of a record, against a model, on every store."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis_process import RedisProcess
from store_driver import LEASE_MS, OK, TTL_MS, StoreDriver, make_driver, success, terms

from takt.gateway.states import (
    SETTLED,
    Attempt,
    Claimed,
    Mismatch,
    OnUnknown,
    Running,
    Settled,
    State,
)
from takt.gateway.store.base import Held

DIGESTS = ("a", "b")
RESULT_TTL_MS = 10 * LEASE_MS


@dataclass
class Model:
    """What a record must be; times on the driver's clock."""

    state: State = State.ABSENT
    token: int = 0
    lease_until: int = 0
    expires: int = 0
    in_flight: bool = False
    deduplicates: bool = False
    fingerprint: str = "f"
    is_replay: bool = False
    chunks: list[bytes] = field(default_factory=list)


class RecordMachine(RuleBasedStateMachine):
    """Clients of any gateway claim, gateways live, stall and die, in any order."""

    make: staticmethod

    def __init__(self) -> None:
        super().__init__()
        self.driver: StoreDriver = type(self).make()
        self.now = 0
        self.models = {digest: Model() for digest in DIGESTS}
        self.tokens: dict[str, list[int]] = {digest: [] for digest in DIGESTS}
        self.newest = 0

    def teardown(self) -> None:
        self.driver.close()

    def held(self, digest: str, data: st.DataObject) -> Held:
        """Any token that was ever given, the newest or one that is fenced off."""
        return Held(digest, data.draw(st.sampled_from(self.tokens[digest]), label="token"))

    def holds(self, held: Held) -> bool:
        model = self.model(held.digest)
        return model.state is State.PROCESSING and model.token == held.token

    def model(self, digest: str) -> Model:
        model = self.models[digest]
        if model.state is not State.ABSENT and self.now >= model.expires:
            model = self.models[digest] = Model()
        return model

    def lapse(self, digest: str) -> bool:
        """A replay that gave no sign of life leaves its letter dead."""
        model = self.model(digest)
        is_over = model.state is State.PROCESSING and self.now >= model.lease_until
        if not (is_over and model.is_replay):
            return False
        model.state, model.is_replay, model.chunks = State.DEAD, False, []
        return True

    @rule(
        digest=st.sampled_from(DIGESTS),
        fingerprint=st.sampled_from("ffg"),
        fails=st.booleans(),
        deduplicates=st.booleans(),
        sent=st.booleans(),
        allow_takeover=st.booleans(),
    )
    def claim(
        self,
        digest: str,
        fingerprint: str,
        fails: bool,
        deduplicates: bool,
        sent: bool,
        allow_takeover: bool,
    ) -> None:
        model = self.model(digest)
        before = model.state
        claim = self.driver.claim(
            digest=digest,
            fingerprint=fingerprint,
            on_unknown=OnUnknown.FAIL if fails else OnUnknown.RETRY,
            deduplicates=deduplicates,
            upstream="http://u" if sent else "",
            allow_takeover=allow_takeover,
        )
        if before is not State.ABSENT and fingerprint != model.fingerprint:
            assert claim == Mismatch()
        elif before in SETTLED:
            assert claim == Settled(before)
        elif before is State.PROCESSING and (self.now < model.lease_until or not allow_takeover):
            assert claim == Running(model.token)
        elif self.lapse(digest):
            assert claim == Settled(State.DEAD)
        elif before is State.PROCESSING and (fails and model.in_flight and not model.deduplicates):
            assert claim == Settled(State.FAILED_FINAL, settled_now=True)
            model.state = State.FAILED_FINAL
            model.chunks = []
            model.expires = self.now + TTL_MS
            self.newest += 1
            model.token = self.newest
        else:
            assert isinstance(claim, Claimed)
            assert claim.token > self.newest, "tokens only rise"
            assert claim.taken_over == (before is State.PROCESSING)
            assert claim.was_in_flight == (claim.taken_over and model.in_flight)
            self.newest = claim.token
            self.tokens[digest].append(claim.token)
            self.models[digest] = Model(
                state=State.PROCESSING,
                token=claim.token,
                lease_until=self.now + LEASE_MS,
                expires=self.now + TTL_MS,
                in_flight=sent,
                deduplicates=deduplicates,
                fingerprint=fingerprint,
            )

    @precondition(lambda self: any(self.tokens.values()))
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        held = self.held(self.digest(data), data)
        expected = self.holds(held)
        assert self.driver.run(self.driver.store.heartbeat([held], LEASE_MS)) == [expected]
        if expected:
            self.models[held.digest].lease_until = self.now + LEASE_MS

    @precondition(lambda self: any(self.tokens.values()))
    @rule(data=st.data(), begins=st.booleans(), deduplicates=st.booleans())
    def attempt(self, data: st.DataObject, begins: bool, deduplicates: bool) -> None:
        held = self.held(self.digest(data), data)
        store = self.driver.store
        expected = self.holds(held)
        if begins:
            done = self.driver.run(store.begin_attempt(held, "http://v", deduplicates))
        else:
            done = self.driver.run(store.end_attempt(held, Attempt(1, "u", "reset", 1)))
        assert done == expected
        if expected:
            model = self.models[held.digest]
            model.in_flight = begins
            if begins:
                model.deduplicates = deduplicates

    @precondition(lambda self: any(self.tokens.values()))
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        held = self.held(self.digest(data), data)
        model = self.model(held.digest)
        expected = self.holds(held)
        chunk = f"{held.token}.{len(model.chunks)}".encode()
        call = self.driver.store.append(held, OK, len(model.chunks), [chunk])
        assert self.driver.run(call) == expected
        if expected:
            model.chunks.append(chunk)

    @precondition(lambda self: any(self.tokens.values()))
    @rule(
        data=st.data(),
        state=st.sampled_from([*sorted(SETTLED), State.FAILED_RETRYABLE]),
    )
    def finish(self, data: st.DataObject, state: State) -> None:
        held = self.held(self.digest(data), data)
        model = self.model(held.digest)
        holds = self.holds(held)
        chunk = f"end of {held.token}".encode()
        end = success(
            chunk,
            state=state,
            ttl_ms=RESULT_TTL_MS,
            first_chunk=len(model.chunks),
            request=b"r" if state is State.DEAD else None,
        )
        repeats = not holds and model.token == held.token and model.state is state
        assert self.driver.finish(held.token, end, held.digest) == (holds or repeats)
        if holds:
            model.state = state
            model.chunks.append(chunk)
            model.in_flight = model.is_replay = False
            model.expires = self.now + RESULT_TTL_MS

    @rule(digest=st.sampled_from(DIGESTS))
    def revive(self, digest: str) -> None:
        self.lapse(digest)
        model = self.model(digest)
        claim = self.driver.run(self.driver.store.revive(digest, terms()))
        assert (claim is not None) == (model.state is State.DEAD)
        if claim is not None:
            assert claim.token > self.newest
            self.newest = claim.token
            self.tokens[digest].append(claim.token)
            self.models[digest] = Model(
                state=State.PROCESSING,
                token=claim.token,
                lease_until=self.now + LEASE_MS,
                expires=self.now + TTL_MS,
                in_flight=True,
                fingerprint=model.fingerprint,
                is_replay=True,
            )

    @rule()
    def list_dead(self) -> None:
        for digest in DIGESTS:
            self.lapse(digest)
        listed = self.driver.run(self.driver.store.dead_letters(10))
        expected = {digest for digest in DIGESTS if self.model(digest).state is State.DEAD}
        assert {record.digest for record in listed} == expected

    @rule(digest=st.sampled_from(DIGESTS))
    def purge(self, digest: str) -> None:
        self.lapse(digest)
        is_dead = self.model(digest).state is State.DEAD
        assert self.driver.run(self.driver.store.purge([digest])) == is_dead
        if is_dead:
            self.models[digest] = Model()

    @rule()
    def sweep(self) -> None:
        self.driver.run(self.driver.store.sweep(10))

    @rule()
    def gateway_restarts(self) -> None:
        self.driver.reopen()

    @rule(ms=st.sampled_from([1, LEASE_MS - 1, LEASE_MS, RESULT_TTL_MS]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.driver.advance(ms)

    @invariant()
    def records_are_as_the_model_says(self) -> None:
        for digest in DIGESTS:
            model = self.model(digest)
            snapshot = self.driver.read(digest)
            assert self.driver.state(digest) is model.state
            if snapshot is None:
                continue
            assert snapshot.chunks == tuple(model.chunks)
            has_request = self.driver.run(self.driver.store.request_of(digest)) is not None
            assert has_request == (model.state is State.DEAD or model.is_replay)
            assert snapshot.record.token == model.token or model.state is State.FAILED_FINAL
            assert snapshot.record.is_lease_alive == (
                model.state is State.PROCESSING and self.now < model.lease_until
            )

    def digest(self, data: st.DataObject) -> str:
        known = [digest for digest in DIGESTS if self.tokens[digest]]
        return data.draw(st.sampled_from(known), label="digest")


@pytest.mark.parametrize(("kind", "num_examples"), [("sqlite", 40), ("redis", 40)])
def test_every_history_of_a_record_is_one_of_the_model(
    kind: str, num_examples: int, runner: asyncio.Runner, redis_process: RedisProcess
) -> None:
    # In memory where there is such a place: thousands of commits are waited for.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        count = iter(range(1_000_000))

        def make() -> StoreDriver:
            own = Path(directory) / str(next(count))
            own.mkdir()
            return make_driver(kind, runner, own, redis_process)

        machine = type("Machine", (RecordMachine,), {"make": staticmethod(make)})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=num_examples,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
