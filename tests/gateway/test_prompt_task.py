"""A coroutine that starts in the caller's turn ends as a task's would."""

from __future__ import annotations

import asyncio

import pytest

from takt.gateway.prompt_task import Arrival, start_now


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


def test_an_arrival_resumes_its_task_at_once(runner: asyncio.Runner) -> None:
    seen: list[object] = []

    async def work(arrival: Arrival[str]) -> None:
        seen.append(await arrival)
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append("ended")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        arrival: Arrival[str] = Arrival(loop)
        task = start_now(work(arrival), loop)
        assert task is not None
        await asyncio.sleep(0)

        def arrive() -> None:
            arrival.set_result("here")
            assert seen == ["here", task]

        loop.call_soon(arrive)
        await task
        assert seen == ["here", task, "ended"]

    runner.run(scenario())


def test_an_arrival_before_the_task_waits_is_not_lost(runner: asyncio.Runner) -> None:
    async def work(arrival: Arrival[str], seen: list[str]) -> None:
        seen.append(await arrival)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        seen: list[str] = []
        arrival: Arrival[str] = Arrival(loop)
        begun = start_now(work(arrival, seen), loop)
        assert begun is not None
        arrival.set_result("between")
        await begun
        assert start_now(work(arrival, seen), loop) is None
        assert seen == ["between", "between"]

    runner.run(scenario())


def test_an_arrival_may_fail_or_be_given_up(runner: asyncio.Runner) -> None:
    async def work(arrival: Arrival[None]) -> None:
        await arrival

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failing: Arrival[None] = Arrival(loop)
        task = loop.create_task(work(failing))
        await asyncio.sleep(0)
        failing.set_exception(ValueError("broken"))
        with pytest.raises(ValueError, match="broken"):
            await task
        given_up: Arrival[None] = Arrival(loop)
        task = loop.create_task(work(given_up))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled() and given_up.done()

    runner.run(scenario())
