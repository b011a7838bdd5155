"""Volatile claims are confirmed soon, together, and unless they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from takt.gateway.store import redis_confirm
from takt.gateway.store.base import Held, StoreUnavailableError
from takt.gateway.store.redis_confirm import ClaimConfirmer

A, B, C = (Held(digest, 1) for digest in "abc")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_confirm, "CONFIRM_SECONDS", 0.02)


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.005)


def test_each_claim_is_confirmed_once_unless_it_has_ended() -> None:
    confirmed: list[Held] = []

    async def confirm(held: Held) -> None:
        confirmed.append(held)

    async def scenario() -> None:
        confirmer = ClaimConfirmer(confirm)
        for held in (A, B):
            confirmer.add(held)
        confirmer.discard(A)
        confirmer.discard(A)
        await until(lambda: confirmed)
        confirmer.add(C)
        await until(lambda: len(confirmed) > 1)
        assert confirmed == [B, C]
        assert confirmer._timer is None, "nothing is left to look at"
        await confirmer.close()

    asyncio.run(scenario())


def test_no_claim_is_confirmed_before_its_time() -> None:
    confirmed: dict[Held, float] = {}

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def confirm(held: Held) -> None:
            confirmed[held] = loop.time()

        confirmer = ClaimConfirmer(confirm)
        added: dict[Held, float] = {}
        for number in range(20):
            held = Held("d", number)
            added[held] = loop.time()
            confirmer.add(held)
            await asyncio.sleep(0.003)
        await until(lambda: len(confirmed) == len(added))
        for held, at in added.items():
            assert confirmed[held] >= at + redis_confirm.CONFIRM_SECONDS - 1e-6
        await confirmer.close()

    asyncio.run(scenario())


def test_claims_that_are_due_together_are_confirmed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_confirm, "GAP_SECONDS", 0.1)
    batches: list[set[Held]] = []

    async def confirm_all(self: ClaimConfirmer, due: list[Held]) -> None:
        batches.append(set(due))

    monkeypatch.setattr(ClaimConfirmer, "_confirm_all", confirm_all)

    async def nothing(held: Held) -> None:
        pass

    async def scenario() -> None:
        confirmer = ClaimConfirmer(nothing)
        confirmer.add(A)
        await asyncio.sleep(0.005)
        confirmer.add(B)
        await asyncio.sleep(0.005)
        confirmer.add(C)
        await until(lambda: len(set().union(*batches)) == 3)
        await confirmer.close()

    asyncio.run(scenario())
    assert len(batches) <= 2


def test_one_that_fails_is_told_of_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    confirmed: list[Held] = []

    async def confirm(held: Held) -> None:
        if held is A:
            raise StoreUnavailableError("the store is away")
        confirmed.append(held)

    async def scenario() -> None:
        confirmer = ClaimConfirmer(confirm)
        confirmer.add(A)
        confirmer.add(B)
        await until(lambda: confirmed)
        confirmer.add(C)
        await until(lambda: len(confirmed) > 1)
        await confirmer.close()

    asyncio.run(scenario())
    assert confirmed == [B, C]
    assert [record.getMessage() for record in caplog.records] == [
        "1 claims are not in the store's file before their next sign of life: the store is away"
    ]


def test_closing_ends_what_waits_and_what_runs() -> None:
    begun: list[Held] = []

    async def confirm(held: Held) -> None:
        begun.append(held)
        await asyncio.Event().wait()

    async def scenario() -> None:
        confirmer = ClaimConfirmer(confirm)
        confirmer.add(A)
        await until(lambda: begun)
        confirmer.add(B)
        await confirmer.close()
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(2 * redis_confirm.CONFIRM_SECONDS)
        assert begun == [A]

    asyncio.run(scenario())
