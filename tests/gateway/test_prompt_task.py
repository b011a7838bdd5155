"""A coroutine that starts in the caller's turn ends as a task's would."""

from __future__ import annotations

import asyncio

import pytest

from takt.gateway.prompt_task import start_now


def test_it_begins_at_once_and_goes_on_as_a_task(runner: asyncio.Runner) -> None:
    seen: list[str] = []

    async def work(gate: asyncio.Future[str]) -> None:
        seen.append("begun")
        seen.append(await gate)
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            seen.append("ended")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        gate: asyncio.Future[str] = loop.create_future()
        task = start_now(work(gate), loop)
        assert task is not None and seen == ["begun"]
        gate.set_result("passed")
        await task
        assert seen == ["begun", "passed", "ended"]

    runner.run(scenario())


def test_what_ends_at_once_is_no_task(runner: asyncio.Runner) -> None:
    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert start_now(work(None), loop) is None
        with pytest.raises(ValueError, match="mine"):
            start_now(work(ValueError("mine")), loop)

    runner.run(scenario())


@pytest.mark.parametrize("num_turns", [0, 3], ids=["before its first turn", "later"])
def test_cancelled_it_ends_where_it_waits(runner: asyncio.Runner, num_turns: int) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("tidied")

    async def scenario() -> None:
        task = start_now(work(), asyncio.get_running_loop())
        assert task is not None
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["tidied"] and task.cancelled()

    runner.run(scenario())


def test_an_awaited_error_is_raised_in_it(runner: asyncio.Runner) -> None:
    async def work(gate: asyncio.Future[None]) -> None:
        await gate

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        gate: asyncio.Future[None] = loop.create_future()
        task = start_now(work(gate), loop)
        assert task is not None
        gate.set_exception(ValueError("late"))
        with pytest.raises(ValueError, match="late"):
            await task

    runner.run(scenario())
