"""Claims that nobody would lead: the client went, or the store did not answer in time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from harness import Harness
from scripted_upstream import ScriptedUpstream

from takt.gateway import gateway as gateway_module
from takt.gateway.states import Claim, Finish, Identity, State, Terms
from takt.gateway.store.base import Held, StoreUnavailableError


def test_a_client_that_goes_while_its_key_is_claimed_gets_the_answer_later(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], store_url, on_unknown="fail") as gateway:
            store = gateway.parts.store
            real, is_claimed, may_go_on = store.claim, asyncio.Event(), asyncio.Event()

            async def slow(identity: Identity, terms: Terms) -> Claim:
                claim = await real(identity, terms)
                is_claimed.set()
                await may_go_on.wait()
                return claim

            store.claim = slow  # type: ignore[method-assign]
            client = asyncio.create_task(gateway.post())
            await is_claimed.wait()
            (connection,) = gateway.server.connections
            client.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await client
            while not connection.is_closing:
                await asyncio.sleep(0.001)
            may_go_on.set()
            answered = await gateway.post()
            assert (answered.status, answered.body) == (200, b'{"n": 1}')
            assert answered.is_replay
            while gateway.handler.num_in_flight:
                await asyncio.sleep(0.001)

    runner.run(scenario())


class Forgetful:
    """Makes a gateway's next claim, and takes its answer for lost."""

    def __init__(self, gateway: Harness) -> None:
        self.digest = ""
        self._store = gateway.parts.store
        self._store.claim = self._claim  # type: ignore[method-assign]

    async def _claim(self, identity: Identity, terms: Terms) -> Claim:
        del self._store.claim  # type: ignore[method-assign]
        self.digest = identity.digest
        await self._store.claim(identity, terms)
        raise StoreUnavailableError("the store did not answer")


def test_a_claim_without_an_answer_is_led_by_who_asks_again(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], store_url, on_unknown="fail") as gateway:
            Forgetful(gateway)
            assert (await gateway.post()).status == 503
            assert upstream.num_executed == 0
            answered = await gateway.post()
            assert (answered.status, answered.body) == (200, b'{"n": 1}')
            assert not answered.is_replay

    runner.run(scenario())


def test_a_claim_without_an_answer_is_released_once_the_store_is_back(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "RELEASE_SECONDS", 0.0)

    async def scenario() -> None:
        async with (
            Harness([upstream], store_url, on_unknown="fail") as one,
            Harness([upstream], store_url, on_unknown="fail") as other,
        ):
            forgetful = Forgetful(one)
            assert (await one.post()).status == 503
            one.parts.keeper.store_answered()
            while await state_of(one, forgetful.digest) is State.PROCESSING:
                await asyncio.sleep(0.001)
            answered = await other.post()
            assert (answered.status, answered.body) == (200, b'{"n": 1}')
            assert (await one.post()).is_replay

    runner.run(scenario())


def test_a_release_that_fails_is_made_again(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "RELEASE_SECONDS", 0.0)

    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, on_unknown="fail") as gateway:
            forgetful = Forgetful(gateway)
            assert (await gateway.post()).status == 503
            store, has_failed = gateway.parts.store, asyncio.Event()

            async def fail(held: Held, finish: Finish) -> bool:
                del store.finish  # type: ignore[method-assign]
                has_failed.set()
                raise StoreUnavailableError("the store did not answer")

            store.finish = fail  # type: ignore[method-assign]
            gateway.parts.keeper.store_answered()
            await has_failed.wait()
            assert await state_of(gateway, forgetful.digest) is State.PROCESSING
            gateway.parts.keeper.store_answered()
            while await state_of(gateway, forgetful.digest) is State.PROCESSING:
                await asyncio.sleep(0.001)
            assert (await gateway.post()).body == b'{"n": 1}'

    runner.run(scenario())


async def state_of(gateway: Harness, digest: str) -> State:
    snapshot = await gateway.parts.store.read(digest)
    assert snapshot is not None
    return snapshot.record.state
