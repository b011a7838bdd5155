"""The engine as a process: killed, aborted, overloaded, restarted."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from core_driver import engine_config, request
from engine_process import collect, engine, expected, make_request, ready, run, until_idle

from takt.engine.calibrate import Calibration
from takt.engine.calibration_file import calibration_path, write_calibration
from takt.engine.client import EngineState
from takt.engine.messages import AddRequest, CommandMessage, Shutdown, StepStats
from takt.engine.proc_client import ProcessEngineClient
from takt.errors import (
    EngineDeadError,
    EngineStartError,
    InvalidRequestError,
    OverloadedError,
)
from takt.scheduler.step_time import StepCoefficients, StepTimeModel

MS = 1_000_000


def test_512_streams_at_once_are_not_mixed_up() -> None:
    async def work() -> None:
        rng = random.Random(1)
        stats: list[StepStats] = []
        async with engine(
            "fake:gather=512",
            on_step=stats.append,
            max_num_seqs=512,
            max_num_batched_tokens=4096,
            kv_cache_memory_bytes=16 << 20,
        ) as client:
            asked = [make_request(f"r{i}", rng, max_tokens=60) for i in range(512)]
            answers = await asyncio.gather(*(collect(client, each) for each in asked))
            assert answers == [expected(each) for each in asked]
            assert client.num_outstanding == 0
        # Prompts of a few steps, and answers that hardly any ends before its 60th token.
        assert max(s.num_running for s in stats) > 500
        assert stats[-1].kv_blocks_used == 0

    run(work())


def test_killed_twenty_times_under_load_everyone_is_told_and_service_is_back(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.CRITICAL)
    held = tmp_path / "held"
    held.write_text("150")

    async def stream(client: ProcessEngineClient, asked: AddRequest, ends: list[str]) -> None:
        try:
            assert await collect(client, asked) == expected(asked)
            ends.append("complete")
        except EngineDeadError as error:
            assert "SIGKILL" in str(error)
            ends.append("told")

    async def work() -> None:
        rng = random.Random(2)
        steps: list[StepStats] = []
        async with engine(f"fake:sleep=1,hold={held}", on_step=steps.append) as client:
            for round_number in range(20):
                await ready(client)
                # No engine makes as many steps as every second one needs: it runs until the kill.
                asked = [
                    make_request(f"{round_number}-{i}", rng, min_tokens=1)
                    if i % 2
                    else make_request(f"{round_number}-{i}", rng, max_tokens=200, ignore_eos=True)
                    for i in range(30)
                ]
                ends: list[str] = []
                tasks = [asyncio.create_task(stream(client, each, ends)) for each in asked]
                num_steps = len(steps) + rng.randint(2, 12)
                while len(steps) < num_steps:
                    await asyncio.sleep(0.001)
                assert client.engine_pid is not None
                os.kill(client.engine_pid, signal.SIGKILL)
                await asyncio.gather(*tasks)
                assert len(ends) == 30
                assert "told" in ends
                assert client.state is EngineState.RESTARTING
                assert client.num_outstanding == 0
            await ready(client)
            assert client.epoch == 21
            last = make_request("last", rng)
            assert await collect(client, last) == expected(last)

    run(work())


def test_while_it_restarts_new_requests_are_told_at_once() -> None:
    async def work() -> None:
        async with engine() as client:
            assert client.engine_pid is not None
            os.kill(client.engine_pid, signal.SIGKILL)
            while client.state is EngineState.READY:
                await asyncio.sleep(0.001)
            with pytest.raises(EngineDeadError, match="starting again"):
                await collect(client, request("a", [1], max_tokens=1))

    run(work())


def test_a_target_that_was_accepted_is_not_refused_at_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path))
    options = {"slo_itl_p99_ms": 20_000.0}
    path = calibration_path(engine_config(model="fake", **options), 1)
    piece = StepCoefficients(MS, 0.0, 0.0, 0.0, 0.0)
    fast = Calibration(StepTimeModel((piece, piece), (1.0,)), MS, 26, 2.4)
    write_calibration(path, fast)

    async def scenario() -> None:
        async with engine(**options) as client:
            write_calibration(path, replace(fast, floor_ns=100_000 * MS))
            assert client.engine_pid is not None
            os.kill(client.engine_pid, signal.SIGKILL)
            while client.epoch == 1:
                await asyncio.sleep(0.005)
            await ready(client)
        # A first start doubts such a file and measures, which this model's steps do not allow.
        with pytest.raises(EngineStartError, match="read before it was written"):
            async with engine(**options):
                pass

    run(scenario())


def test_three_deaths_without_a_step_end_it() -> None:
    async def work() -> None:
        last_words: list[str] = []
        async with engine("fake:die-after=1", on_dead=last_words.append) as client:
            for attempt in range(3):
                await ready(client)
                with pytest.raises(EngineDeadError):
                    await collect(client, request(f"r{attempt}", [1, 2], max_tokens=4))
            while client.state is not EngineState.DEAD:
                await asyncio.sleep(0.005)
            assert client.epoch == 3
            (sentence,) = last_words
            assert "3 times in a row" in sentence
            assert "\n" not in sentence
            with pytest.raises(EngineDeadError):
                await collect(client, request("late", [1], max_tokens=1))

    run(work())


def test_deaths_with_steps_between_do_not_add_up() -> None:
    async def work() -> None:
        async with engine("fake:die-after=3") as client:
            for attempt in range(5):
                await ready(client)
                with pytest.raises(EngineDeadError):
                    await collect(
                        client, request(f"r{attempt}", [1], max_tokens=9, ignore_eos=True)
                    )
            await ready(client)
            assert client.epoch == 6

    run(work())


def test_an_engine_that_dies_at_start_is_given_up_after_three_tries() -> None:
    async def work() -> None:
        with pytest.raises(EngineDeadError, match="3 times in a row"):
            async with engine("fake:die-at-start"):
                pass

    run(work())


def test_a_users_mistake_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        with pytest.raises(EngineStartError, match="--max-model-len 9 is wrong") as caught:
            async with engine("fake:refuse"):
                pass
        assert caught.value.exit_code == 2

    run(work())
    assert capfd.readouterr().err == ""


def test_a_fault_of_ours_is_logged_once(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        with pytest.raises(EngineStartError, match="ZeroDivisionError: a fault of ours"):
            async with engine("fake:raise"):
                pass

    run(work())
    assert capfd.readouterr().err.count("Traceback") == 1


def test_1000_random_aborts_return_every_block() -> None:
    async def reader(client: ProcessEngineClient, asked: AddRequest, rng: random.Random) -> None:
        """Reads a few outputs, then closes, is cancelled from outside, or aborts and reads on."""
        outputs = client.generate(asked)
        tokens: list[int] = []
        limit = rng.randint(0, 6)
        way = rng.choice(["close", "abort"])
        async for output in outputs:
            tokens += output.token_ids
            if len(tokens) >= limit and way == "close":
                break
            if len(tokens) >= limit:
                client.abort(asked.request_id)
            if output.finish_reason is not None:
                assert output.finish_reason in ("abort", "length", "stop")
        await outputs.aclose()  # type: ignore[attr-defined]
        assert tokens == expected(asked)[0][: len(tokens)]

    async def work() -> None:
        rng = random.Random(3)
        stats: list[StepStats] = []
        async with engine(on_step=stats.append) as client:
            for _ in range(10):
                tasks = []
                for i in range(100):
                    asked = make_request(f"{_}-{i}", rng, max_tokens=20)
                    tasks.append(asyncio.create_task(reader(client, asked, rng)))
                    if rng.random() < 0.2:
                        await asyncio.sleep(0)
                        rng.choice(tasks).cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                faults = [r for r in results if r is not None]
                assert all(isinstance(r, asyncio.CancelledError) for r in faults), faults
            asked = make_request("last", rng)
            assert await collect(client, asked) == expected(asked)
            assert client.num_outstanding == 0
            assert stats[-1].kv_blocks_used == 0

    run(work())


def test_one_choice_is_aborted_and_the_others_end_by_themselves(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("6")

    async def work() -> None:
        async with engine(f"fake:hold={held}") as client:
            asked = request(
                "a", [1, 2, 3], n=3, max_tokens=30, temperature=1.0, seed=8, ignore_eos=True
            )
            reasons: dict[int, str] = {}
            tokens: list[list[int]] = [[], [], []]
            async for output in client.generate(asked):
                tokens[output.choice] += output.token_ids
                if output.choice == 1 and len(tokens[1]) == 3:
                    client.abort("a", 1)
                if output.finish_reason is not None:
                    reasons[output.choice] = output.finish_reason
                    held.unlink(missing_ok=True)
            assert reasons == {0: "length", 1: "abort", 2: "length"}
            assert [tokens[0], tokens[2]] == [expected(asked)[0], expected(asked)[2]]
            assert 3 <= len(tokens[1]) < 30

    run(work())


def test_a_full_queue_is_refused_and_says_so(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("9")

    async def work() -> None:
        async with engine(f"fake:hold={held}", max_num_seqs=4, max_num_waiting=6) as client:
            tasks = [
                asyncio.create_task(
                    collect(client, request(f"r{i}", [i], max_tokens=50, ignore_eos=True))
                )
                for i in range(10)
            ]
            while client.num_outstanding < 10:
                await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="10 sequences"):
                await collect(client, request("more", [1], max_tokens=1))
            held.unlink()
            await asyncio.gather(*tasks)
            await collect(client, request("later", [1], max_tokens=1))

    run(work())


def test_what_can_never_be_served_is_an_error_by_name() -> None:
    async def work() -> None:
        async with engine() as client:
            with pytest.raises(InvalidRequestError, match="300") as caught:
                await collect(client, request("a", [1] * 300, max_tokens=1))
            assert caught.value.param == "prompt"
            assert caught.value.code == "context_length_exceeded"
            assert client.num_outstanding == 0

    run(work())


def test_malformed_messages_do_not_end_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with engine() as client:
            child = client._child
            assert child is not None and child._socket is not None
            pid = client.engine_pid
            rng = random.Random(4)
            whole = msgspec.msgpack.encode(
                CommandMessage(1, AddRequest("x", [1], request("x", [1]).sampling))
            )
            junk = [b"", b"\xc1", b"\x91" * 5000, whole[:-3], whole + b"\x00"]
            junk += [rng.randbytes(rng.randint(1, 200)) for _ in range(200)]
            bad_range = whole.replace(b"temperature\xcb", b"temperature\xcb\xff\xf8", 1)
            for payload in [*junk, bad_range]:
                child._socket.send(payload)
            child._socket.send(msgspec.msgpack.encode(CommandMessage(7, Shutdown())))
            asked = make_request("a", rng)
            assert await collect(client, asked) == expected(asked)
            assert client.engine_pid == pid

    run(work())
    assert "malformed" in capfd.readouterr().err


def test_an_idle_engine_uses_no_cpu() -> None:
    async def work() -> None:
        async with engine() as client:
            await collect(client, request("a", [1], max_tokens=3))
            assert client.engine_pid is not None
            await until_idle(client.engine_pid)

    run(work())
