"""What becomes of a dead letter that is replayed from the command line."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest
from gateway_process import COMMAND, run_takt
from harness import Answered, Harness
from scripted_upstream import Reply, ScriptedUpstream, answer, hold, stream

LEASE_MS = 500


async def takt(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run_takt, *arguments)


async def causes(gateway: Harness) -> list[str]:
    return [letter.cause for letter in await gateway.parts.store.dead_letters(2)]


async def die(gateway: Harness, upstream: ScriptedUpstream) -> str:
    """Makes a dead letter; its digest."""
    upstream.script = [answer(500)]
    assert (await gateway.post()).status == 500
    (letter,) = await gateway.parts.store.dead_letters(2)
    upstream.arrived.clear()
    return letter.digest


async def replays_at_last(gateway: Harness, upstream: ScriptedUpstream, store_url: str) -> Answered:
    (letter,) = await gateway.parts.store.dead_letters(2)
    upstream.script = []
    sent = ("--upstream", upstream.url, "--store", store_url)
    replayed = await takt("dlq", "replay", "--all", *sent)
    assert replayed.stdout.split() == [letter.digest[:16], "succeeded"], replayed.stderr
    assert await gateway.parts.store.request_of(letter.digest) is None
    return await gateway.post()


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (answer(401), "status 401"),
        (answer(503, headers={"Retry-After": "86400"}), "retry_after"),
        (answer(500), "status 500"),
        (stream(break_after=1), "stream_broken"),
        (None, "no upstream can be asked now"),
    ],
    ids=["refused", "retry-after", "dead", "stream", "unhealthy"],
)
def test_a_replay_that_fails_leaves_the_letter(
    reply: Reply | None,
    cause: str,
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[retry]\nmax_tries = 2\nbase_ms = 1\npatience_ms = 50\n")

    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, retry={"max_tries": 1}) as gateway:
            digest = await die(gateway, upstream)
            request = await gateway.parts.store.request_of(digest)
            upstream.script = [] if reply is None else [reply, reply]
            upstream.health_status = 503 if reply is None else 200
            sent = ("--upstream", upstream.url, "--store", sqlite_url, "--policy", str(policy))
            failed = await takt("dlq", "replay", digest[:16], *sent)
            upstream.health_status = 200
            assert failed.stdout == f"{digest[:16]}  dead  {cause}\n", failed.stderr
            assert failed.returncode == 1
            assert await causes(gateway) == [cause]
            assert await gateway.parts.store.request_of(digest) == request
            asked = await gateway.post()
            assert asked.is_replay
            assert asked.status == (500 if cause == "status 500" else 502)
            assert (await replays_at_last(gateway, upstream, sqlite_url)).status == 200

    runner.run(scenario())


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_replay_that_is_stopped_leaves_the_letter(
    stop: signal.Signals, runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    """A client that asks meanwhile waits for the replay, and is told that the letter is kept."""
    lease = ("--lease-ms", str(LEASE_MS))
    sent = ("--upstream", upstream.url, "--store", store_url, *lease)

    async def scenario() -> None:
        options = {"retry": {"max_tries": 1}, "lease_ms": LEASE_MS}
        async with Harness([upstream], store_url, **options) as gateway:
            digest = await die(gateway, upstream)
            upstream.script = [hold(answer())]
            replay = subprocess.Popen([*COMMAND, "dlq", "replay", digest, *sent])
            await upstream.arrived.wait()
            asked = asyncio.create_task(gateway.post())
            assert await causes(gateway) == []
            assert not asked.done()
            replay.send_signal(stop)
            code = await asyncio.to_thread(replay.wait, 60)
            assert code == (-9 if stop is signal.SIGKILL else 128 + stop)
            told = await asked
            assert (told.status, told.is_replay) == (502, True)
            assert b"replay_interrupted. The request is kept" in told.body
            assert await causes(gateway) == ["replay_interrupted"]
            assert (await replays_at_last(gateway, upstream, store_url)).status == 200

    runner.run(scenario())


def test_a_client_that_asks_during_a_replay_gets_its_answer(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], store_url, retry={"max_tries": 1}) as gateway:
            digest = await die(gateway, upstream)
            upstream.script = [stream(hold_before=2)]
            sent = ("--upstream", upstream.url, "--store", store_url)
            replay = asyncio.create_task(takt("dlq", "replay", digest, *sent))
            await upstream.arrived.wait()
            asked = asyncio.create_task(gateway.post())
            await asyncio.sleep(0.3)  # the stream has begun, and is not shown yet
            upstream.release.set()
            assert (await replay).returncode == 0
            assert (await asked).body == (await gateway.post()).body
            assert (await asked).body.endswith(b"[DONE]\n\n")
        assert len(upstream.seen) == 2

    runner.run(scenario())


@pytest.mark.parametrize(
    "command", [("list",), ("show", "abcdef"), ("purge", "--all"), ("replay", "--all")]
)
def test_a_store_that_is_not_there_is_named_and_not_made(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    upstream = ("--upstream", "http://127.0.0.1:9") if command[0] == "replay" else ()
    path = tmp_path / "typo.db"
    result = run_takt("dlq", *command, *upstream, "--store", f"sqlite:///{path}")
    assert result.returncode == 2
    assert result.stdout == ""
    assert str(path) in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
