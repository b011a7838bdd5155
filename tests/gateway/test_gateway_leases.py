"""Leases that another has taken: who finds out, and what the client gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from harness import Harness
from scripted_upstream import ScriptedUpstream, answer, hold

from takt.gateway.store.base import Held


def test_paused_gateway_gives_the_answer_of_the_one_that_took_over(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [hold(answer(text='"late"'))]
        async with (
            Harness([upstream], store_url, lease_ms=600) as one,
            Harness([upstream], store_url, lease_ms=600) as other,
        ):

            async def no_beat(*_: object) -> list[bool]:
                await asyncio.Event().wait()
                return []

            one.parts.store.heartbeat = no_beat  # type: ignore[method-assign]
            paused = asyncio.create_task(one.post())
            await upstream.arrived.wait()
            taken = await other.post()
            upstream.release.set()
            answered = await paused
            assert answered.body == taken.body == b'{"n": 1}'
            assert one.metric("takt_gateway_leases_lost_total", service="default") == 1
            del one.parts.store.heartbeat  # type: ignore[method-assign]

    runner.run(scenario())


def test_a_lease_that_a_sign_of_life_finds_lost_is_counted_and_led_again(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        upstream.script = [hold(answer(text='"late"'))]
        async with Harness([upstream], sqlite_url, lease_ms=600) as gateway:
            lost = asyncio.Event()

            async def find_lost(held: Sequence[Held], lease_ms: int) -> list[bool]:
                del gateway.parts.store.heartbeat  # type: ignore[method-assign]
                lost.set()
                return [False for _ in held]

            answered = asyncio.create_task(gateway.post())
            await upstream.arrived.wait()
            gateway.parts.store.heartbeat = find_lost  # type: ignore[method-assign]
            await lost.wait()
            upstream.release.set()
            assert (await answered).status == 200
            assert gateway.metric("takt_gateway_leases_lost_total", service="default") == 1

    runner.run(scenario())
