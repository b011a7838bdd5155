"""Scripts over one connection: in order, sent again by whom they failed, never mixed up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis_process import RedisProcess

from takt.gateway.store.redis_pipe import Script, ScriptPipe

ECHO = Script.of("return {ARGV[1], redis.call('INCR', KEYS[1])}")
BROKEN = Script.of("return redis.call('NO SUCH COMMAND')")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path)
    process.start()
    yield process
    process.kill()


def run(
    redis: RedisProcess, scenario: Callable[[ScriptPipe], Awaitable[None]], timeout: float = 5.0
) -> None:
    async def scoped() -> None:
        pipe = ScriptPipe(redis.url, timeout)
        try:
            await scenario(pipe)
        finally:
            await pipe.close()

    asyncio.run(scoped())


async def run_at_last(pipe: ScriptPipe, text: str) -> list[object]:
    """For pipes with a time limit so short that a busy machine may miss it."""
    while True:
        try:
            answer: list[object] = await pipe.run(ECHO, ["n"], [text])
            return answer
        except (RedisTimeoutError, RedisConnectionError):
            await asyncio.sleep(0.05)


def test_each_script_gets_its_own_answer(redis: RedisProcess) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        await pipe.run(ECHO, ["n"], ["loads the script"])
        answers = await asyncio.gather(*(pipe.run(ECHO, ["n"], [f"a{i}"]) for i in range(200)))
        assert [text for text, _ in answers] == [b"a%d" % i for i in range(200)]
        counts = [count for _, count in answers]
        assert counts == sorted(counts)

    run(redis, scenario)


def test_a_script_that_fails_fails_alone(redis: RedisProcess) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        answers = await asyncio.gather(
            pipe.run(ECHO, ["n"], ["a"]),
            pipe.run(BROKEN, ["n"], []),
            pipe.run(ECHO, ["n"], ["b"]),
            return_exceptions=True,
        )
        assert isinstance(answers[1], ResponseError)
        assert (answers[0][0], answers[2][0]) == (b"a", b"b")  # type: ignore[index]

    run(redis, scenario)


def test_one_that_is_given_up_shifts_no_answer(redis: RedisProcess) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        await pipe.run(ECHO, ["n"], ["first"])
        given_up = asyncio.create_task(pipe.run(ECHO, ["n"], ["given up"]))
        kept = asyncio.create_task(pipe.run(ECHO, ["n"], ["kept"]))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await kept)[0] == b"kept"

    run(redis, scenario)


def test_late_scripts_fail_together_and_the_next_one_has_a_new_connection(
    redis: RedisProcess,
) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        await run_at_last(pipe, "loads the script")
        redis.pause()
        late = [pipe.run(ECHO, ["n"], ["late"]), pipe.run(ECHO, ["n"], ["behind"])]
        answers = await asyncio.gather(*late, return_exceptions=True)
        assert {type(answer) for answer in answers} == {RedisTimeoutError}
        redis.resume()
        assert (await run_at_last(pipe, "again"))[0] == b"again"

    run(redis, scenario, timeout=0.3)


def test_after_a_restart_scripts_run_again(redis: RedisProcess) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        await pipe.run(ECHO, ["n"], ["before"])
        redis.kill()
        with pytest.raises((RedisConnectionError, OSError)):
            await pipe.run(ECHO, ["n"], ["down"])
        redis.start()
        assert (await pipe.run(ECHO, ["n"], ["after"]))[0] == b"after"

    run(redis, scenario)


def test_a_server_that_accepts_and_says_nothing_is_given_up_by_all_at_once(
    redis: RedisProcess,
) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        redis.pause()
        connections = []
        make_connection = pipe._make_connection

        def make() -> AbstractConnection:
            connections.append(make_connection())
            return connections[-1]

        pipe._make_connection = make
        calls = [pipe.run(ECHO, ["n"], ["a"]) for _ in range(20)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {RedisTimeoutError}
        # One after the other they would have waited for 20 times the limit.
        assert len(connections) == 1
        redis.resume()
        assert (await run_at_last(pipe, "again"))[0] == b"again"

    run(redis, scenario, timeout=0.3)


def test_a_command_that_a_hanging_server_does_not_even_take_is_given_up(
    redis: RedisProcess,
) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        await run_at_last(pipe, "loads the script")
        redis.pause()
        more_than_sockets_hold = bytes(32 * 1024 * 1024)
        with pytest.raises((RedisTimeoutError, RedisConnectionError)):
            await pipe.run(ECHO, ["n"], [more_than_sockets_hold])
        redis.resume()

    run(redis, scenario, timeout=0.3)


def test_closing_while_the_connection_is_being_made_leaves_none(redis: RedisProcess) -> None:
    async def scenario(pipe: ScriptPipe) -> None:
        redis.pause()
        waiting = asyncio.create_task(pipe.run(ECHO, ["n"], ["a"]))
        await asyncio.sleep(0.05)
        await pipe.close()
        with pytest.raises((asyncio.CancelledError, RedisConnectionError)):
            await waiting
        assert len(asyncio.all_tasks()) == 1
        redis.resume()

    run(redis, scenario)
