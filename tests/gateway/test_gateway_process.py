"""Real processes: killed, stopped, and started with what cannot work."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from gateway_process import GatewayProcess, run_takt
from harness import BODY, PATH
from redis_process import RedisProcess
from scripted_upstream import ScriptedUpstream, answer, hold

from free_port import free_port
from takt.cli.main import main

StartGateway = Callable[..., GatewayProcess]

ROOT = Path(__file__).parents[2]


async def post(
    session: aiohttp.ClientSession, url: str, key: str, path: str = PATH
) -> tuple[int, bytes]:
    async with session.post(url + path, json=BODY, headers={"Idempotency-Key": key}) as response:
        return response.status, await response.read()


def test_killed_gateway_is_succeeded_by_its_restart(
    runner: asyncio.Runner, upstream: ScriptedUpstream, store_url: str, start_gateway: StartGateway
) -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session:
            gateway = await asyncio.to_thread(start_gateway, store_url, upstream.url)
            stored = await post(session, gateway.url, "stored")
            upstream.script = [hold(answer())]
            upstream.arrived.clear()
            lost = asyncio.create_task(post(session, gateway.url, "lost"))
            await upstream.arrived.wait()
            gateway.kill()
            with pytest.raises(aiohttp.ClientError):
                await lost
            gateway = await asyncio.to_thread(start_gateway, store_url, upstream.url)
            assert await post(session, gateway.url, "stored") == stored
            taken = await post(session, gateway.url, "lost")
            assert taken[0] == 200
            assert await post(session, gateway.url, "lost") == taken
            assert await asyncio.to_thread(gateway.terminate) == 0
        assert len(upstream.seen) == 3

    runner.run(scenario())


def test_stop_lets_running_answers_end(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, start_gateway: StartGateway
) -> None:
    async def scenario() -> None:
        upstream.script = [hold(answer())]
        gateway = await asyncio.to_thread(start_gateway, sqlite_url, upstream.url)
        async with aiohttp.ClientSession() as session:
            running = asyncio.create_task(post(session, gateway.url, "k"))
            await upstream.arrived.wait()
            gateway.signal_stop()
            number = 0
            while (await post(session, gateway.url, f"k{(number := number + 1)}"))[0] != 503:
                await asyncio.sleep(0.01)
            upstream.release.set()
            assert (await running)[0] == 200
        assert await asyncio.to_thread(gateway.wait) == 0

    runner.run(scenario())


def test_dead_letters_from_the_command_line(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    start_gateway: StartGateway,
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[retry]\nmax_tries = 2\nbase_ms = 1\n")

    async def scenario() -> None:
        upstream.default = answer(500)
        flags = ("--policy", str(policy))
        gateway = await asyncio.to_thread(start_gateway, sqlite_url, upstream.url, *flags)
        store = ("--store", sqlite_url)
        async with aiohttp.ClientSession() as session:
            for key in ("one", "two"):
                await post(session, gateway.url, key)
            listed = await asyncio.to_thread(run_takt, "dlq", "list", *store)
            digests = [line.split()[0] for line in listed.stdout.splitlines()]
            assert len(digests) == 2
            shown = await asyncio.to_thread(run_takt, "dlq", "show", digests[0], "--body", *store)
            assert "key        one" in shown.stdout
            assert '"hello"' in shown.stdout
            upstream.default = answer()
            sent = ("--upstream", upstream.url, *store)
            replayed = await asyncio.to_thread(run_takt, "dlq", "replay", digests[0], *sent)
            assert replayed.stdout.split() == [digests[0], "succeeded"]
            assert replayed.returncode == 0
            assert await post(session, gateway.url, "one") == (200, b'{"n": 1}')
            purged = await asyncio.to_thread(run_takt, "dlq", "purge", "--all", *store)
            assert purged.stdout == "purged 1\n"
            assert (await post(session, gateway.url, "two"))[0] == 200
        await asyncio.to_thread(gateway.terminate)
        assert {one.key for one in upstream.seen} == {"one", "two"}

    runner.run(scenario())


def test_two_processes_share_a_sqlite_store_while_one_comes_and_goes(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, start_gateway: StartGateway
) -> None:
    """The one that stays must see what the other wrote, and the other way round."""

    async def scenario() -> None:
        stays = await asyncio.to_thread(start_gateway, sqlite_url, upstream.url)
        async with aiohttp.ClientSession() as session:
            for number in range(2):
                comes = await asyncio.to_thread(start_gateway, sqlite_url, upstream.url)
                there = await post(session, comes.url, f"there{number}")
                here = await post(session, stays.url, f"here{number}")
                assert await post(session, comes.url, f"here{number}") == here
                assert await asyncio.to_thread(comes.terminate) == 0
                assert await post(session, stays.url, f"there{number}") == there
        assert upstream.num_executed == 4
        await asyncio.to_thread(stays.terminate)

    runner.run(scenario())


UPSTREAM = ("--upstream", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ((), "--upstream"),
        (("--upstream", "ftp://x"), "ftp://x"),
        ((*UPSTREAM, "--store", "mysql://u:secret@x"), "'mysql'"),
        ((*UPSTREAM, "--store", "redis://127.0.0.1:9/0"), "127.0.0.1:9"),
        ((*UPSTREAM, "--store", "redis://127.0.0.1:9/0?foo=x"), "has an option"),
        ((*UPSTREAM, "--store", "redis://127.0.0.1:9/0?event_dispatcher=x"), "has an option"),
        ((*UPSTREAM, "--store", "redis://127.0.0.1:9/0?decode_responses=1"), "has an option"),
        ((*UPSTREAM, "--store", "redis://127.0.0.1:9/0?health_check_interval=x"), "redis://"),
        ((*UPSTREAM, "--store", "sqlite:////nowhere/at/all.db"), "/nowhere/at/all.db"),
        ((*UPSTREAM, "--policy", "/nowhere.toml"), "/nowhere.toml"),
        ((*UPSTREAM, "--on-unknown", "guess"), "guess"),
        ((*UPSTREAM, "--lease-ms", "1"), "--lease-ms"),
        ((*UPSTREAM, "--bodies-at-rest", "encrypted"), "--encryption-key-file"),
        ((*UPSTREAM, "--ssl-certfile", "/nowhere.pem"), "--ssl-keyfile"),
        ((*UPSTREAM, "--leas-ms", "1000"), "--lease-ms"),
    ],
)
def test_what_cannot_work_ends_in_one_line_and_exit_code_2(
    flags: tuple[str, ...], names: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = () if "--store" in flags else ("--store", f"sqlite:///{tmp_path}/store.db")
    interval = sys.getswitchinterval()
    with pytest.raises(SystemExit) as ended:
        main(["gateway", "--port", "0", *store, *flags])
    sys.setswitchinterval(interval)
    assert ended.value.code == 2
    printed = capfd.readouterr().err
    assert names in printed
    assert len(printed.strip().splitlines()) == 1


def test_volatile_redis_is_refused_unless_accepted(
    runner: asyncio.Runner, upstream: ScriptedUpstream, tmp_path: Path, start_gateway: StartGateway
) -> None:
    process = RedisProcess(tmp_path, appendonly=False)
    process.start()
    try:
        flags = ("gateway", "--port", "0", "--upstream", upstream.url)
        refused = run_takt(*flags, "--store", process.url)
        assert refused.returncode == 2
        assert "--store-volatile" in refused.stderr

        async def scenario() -> None:
            gateway = await asyncio.to_thread(
                start_gateway, process.url, upstream.url, "--store-volatile"
            )
            async with aiohttp.ClientSession() as session:
                assert (await post(session, gateway.url, "k"))[0] == 200
            await asyncio.to_thread(gateway.terminate)

        runner.run(scenario())
    finally:
        process.kill()


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    result = run_takt("gateway", *UPSTREAM, "--port", "0", "--store", f"sqlite:///{path}")
    assert result.returncode == 2
    assert "another program" in result.stderr


def test_gateway_starts_before_its_upstream_and_says_so(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, start_gateway: StartGateway
) -> None:
    async def scenario() -> None:
        await upstream.stop()
        port = free_port()
        gateway = await asyncio.to_thread(start_gateway, sqlite_url, f"http://127.0.0.1:{port}")
        async with aiohttp.ClientSession() as session:

            async def health() -> int:
                async with session.get(gateway.url + "/health") as response:
                    return response.status

            assert await health() == 503
            await upstream.start(port)
            while await health() != 200:
                await asyncio.sleep(0.02)
            async with session.get(gateway.url + "/metrics") as response:
                text = await response.text()
        assert 'idempotent_request_total{service="default",status="duplicate"} 0.0' in text
        await asyncio.to_thread(gateway.terminate)

    runner.run(scenario())


@pytest.mark.parametrize(("store", "mode"), [("sqlite", "fail"), ("redis", "retry")])
def test_faults_and_kills_leave_one_answer_for_each_request(store: str, mode: str) -> None:
    script = (
        "import asyncio, sys; from benchmarks.gateway import faults;"
        f"sys.exit(not asyncio.run(faults.run({store!r}, {mode!r}, 150, 40)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
