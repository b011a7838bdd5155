"""What the file of Redis has when the Redis store says so: it may be killed at any moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from harness import Harness
from redis_process import RedisProcess
from scripted_upstream import ScriptedUpstream, answer, hold
from store_driver import LEASE_MS, OK, TTL_MS, StoreDriver, success

from takt.errors import ConfigError
from takt.gateway.states import Attempt, Claimed, OnUnknown, Settled, State
from takt.gateway.store import redis_confirm
from takt.gateway.store.base import Held, StoreUnavailableError
from takt.gateway.store.redis import RedisStore
from takt.gateway.store.redis_scripts import DEAD, FENCE, keys_of

FAILED = Attempt(1, "http://u", "reset", 3)


class Server:
    """A Redis that syncs all, as somebody sees it who is not the store."""

    def __init__(self, process: RedisProcess) -> None:
        self.process = process
        self.client = redis.Redis.from_url(process.url)

    def restart(self) -> None:
        self.process.kill()
        self.process.start()

    def num_file_bytes(self) -> int:
        persistence: dict[str, Any] = self.client.info("persistence")
        return int(persistence["aof_current_size"])

    def fields(self, digest: str = "d") -> dict[bytes, bytes]:
        fields: dict[bytes, bytes] = self.client.hgetall(keys_of(digest)[0])
        return fields

    def is_unwritten(self, digest: str = "d") -> bool:
        return b"is_unwritten" in self.fields(digest)

    def ttl_ms(self) -> int:
        return int(self.client.pttl(keys_of("d")[0]))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    process = RedisProcess(tmp_path)
    process.start()
    server = Server(process)
    yield server
    server.client.close()
    process.kill()


@pytest.fixture
def driver(
    server: Server, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreDriver]:
    """On the server's clock. A claim is unwritten until a test says otherwise."""
    monkeypatch.setattr(redis_confirm, "CONFIRM_SECONDS", 1000.0)

    def make() -> RedisStore:
        return RedisStore(server.process.url)

    driver = StoreDriver(runner, make(), lambda ms: time.sleep(ms / 1000), make)
    yield driver
    driver.close()


def claimed(driver: StoreDriver, **changes: Any) -> Held:
    claim = driver.claim(**{"lease_ms": 60_000} | changes)
    assert isinstance(claim, Claimed)
    return Held(changes.get("digest", "d"), claim.token)


@pytest.mark.parametrize(
    ("changes", "is_unwritten"),
    [
        ({}, True),
        ({"on_unknown": OnUnknown.FAIL}, False),
        ({"deduplicates": True}, False),
        ({"upstream": ""}, False),
    ],
    ids=["retry", "fail", "dedup", "unsent"],
)
def test_claim_is_in_the_file_unless_it_may_be_forgotten(
    driver: StoreDriver, server: Server, changes: dict[str, Any], is_unwritten: bool
) -> None:
    before = server.num_file_bytes()
    claimed(driver, **changes)
    assert (server.num_file_bytes() == before) == is_unwritten
    server.restart()
    assert driver.state() is (State.ABSENT if is_unwritten else State.PROCESSING)


@pytest.mark.parametrize("appends", [True, False], ids=["everysec", "no-file"])
def test_claim_is_an_ordinary_one_where_no_reply_waits_for_the_disk(
    runner: asyncio.Runner, tmp_path: Path, appends: bool
) -> None:
    process = RedisProcess(tmp_path, appendonly=appends, appendfsync="everysec")
    process.start()

    def make() -> RedisStore:
        return RedisStore(process.url, volatile=not appends)

    server = Server(process)
    driver = StoreDriver(runner, make(), lambda ms: time.sleep(ms / 1000), make)
    try:
        claimed(driver)
        assert not server.is_unwritten()
        if appends:  # written before the reply, if not synced: it outlives Redis
            server.restart()
            assert driver.state() is State.PROCESSING
    finally:
        driver.close()
        server.client.close()
        process.kill()


def test_a_redis_that_takes_no_writes_is_not_there(server: Server, runner: asyncio.Runner) -> None:
    store = RedisStore(server.process.url)
    runner.run(store.open())
    server.client.config_set("min-replicas-to-write", 1)
    runner.run(store.ping())
    with pytest.raises(StoreUnavailableError, match="NOREPLICAS"):
        runner.run(store.ping(writes=True))
    runner.run(store.close())
    with pytest.raises(ConfigError, match="takes no writes"):
        runner.run(RedisStore(server.process.url).open())


NEXT_WRITES: dict[str, Callable[[StoreDriver, Held], bool]] = {
    "heartbeat": lambda d, held: d.run(d.store.heartbeat([held], 60_000)) == [True],
    "begin_attempt": lambda d, held: d.run(d.store.begin_attempt(held, "http://v", True)),
    "end_attempt": lambda d, held: d.run(d.store.end_attempt(held, FAILED)),
    "append": lambda d, held: d.run(d.store.append(held, OK, 0, [b"a", b"b"])),
    "finish": lambda d, held: d.finish(held.token, success(b"a", b"b", ttl_ms=TTL_MS // 2)),
    "dead": lambda d, held: d.finish(
        held.token, success(b"a", state=State.DEAD, attempt=FAILED, request=b"sealed")
    ),
    "takeover": lambda d, held: isinstance(d.claim(), Claimed),
    "settling": lambda d, held: isinstance(d.claim(on_unknown=OnUnknown.FAIL), Settled),
}


@pytest.mark.parametrize("name", NEXT_WRITES)
def test_next_write_puts_the_whole_record_into_the_file(
    driver: StoreDriver, server: Server, name: str
) -> None:
    takes_over = name in ("takeover", "settling")
    held = claimed(driver, lease_ms=1 if takes_over else 60_000)
    assert server.is_unwritten()
    driver.advance(5 if takes_over else 0)
    assert NEXT_WRITES[name](driver, held)
    assert not server.is_unwritten()
    fields, ttl_ms = server.fields(), server.ttl_ms()
    request = driver.run(driver.store.request_of("d"))
    snapshot = driver.read()
    assert snapshot is not None
    server.restart()
    assert server.fields() == fields
    assert ttl_ms - 60_000 < server.ttl_ms() <= ttl_ms
    after = driver.read()
    assert after is not None
    assert (after.record.history, after.chunks) == (snapshot.record.history, snapshot.chunks)
    assert driver.run(driver.store.request_of("d")) == request
    assert driver.run(driver.store.num_dead()) == (name == "dead")


def test_running_claim_is_in_the_file_soon_and_its_lease_is_as_it_was(
    driver: StoreDriver, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_confirm, "CONFIRM_SECONDS", 0.05)
    for digest in ("d", "e"):
        claimed(driver, digest=digest)
    before = {digest: server.fields(digest) for digest in ("d", "e")}
    while server.is_unwritten("d") or server.is_unwritten("e"):
        driver.run(asyncio.sleep(0.01))
    server.restart()
    for digest, fields in before.items():
        fields.pop(b"is_unwritten", None)
        assert server.fields(digest) == fields


def test_claim_that_ends_soon_is_not_confirmed(driver: StoreDriver, server: Server) -> None:
    store = driver.store
    assert isinstance(store, RedisStore)
    held = claimed(driver)
    assert list(store._confirmer._due_at) == [held]
    assert driver.finish(held.token, success(b"x"))
    assert not store._confirmer._due_at


def test_claim_sent_again_after_a_lost_answer_is_confirmed_too(
    driver: StoreDriver, server: Server
) -> None:
    first = claimed(driver, claim_id="c")
    driver.reopen()
    assert claimed(driver, claim_id="c") == first
    store = driver.store
    assert isinstance(store, RedisStore)
    assert list(store._confirmer._due_at) == [first]


def test_nothing_of_an_earlier_life_comes_back(driver: StoreDriver, server: Server) -> None:
    old = success(b"old", state=State.DEAD, attempt=FAILED, request=b"sealed", ttl_ms=30)
    assert driver.finish(claimed(driver).token, old)
    driver.advance(40)
    assert driver.run(driver.store.sweep(10)) == 1
    held = claimed(driver)
    assert server.is_unwritten()
    assert driver.finish(held.token, success(b"a", b"b"))
    server.restart()
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"a", b"b")
    assert snapshot.record.history == ()
    assert snapshot.record.token == held.token
    assert driver.run(driver.store.request_of("d")) is None


@pytest.mark.parametrize("left", ["chunks", "dead"])
def test_claim_that_removes_something_is_in_the_file(
    driver: StoreDriver, server: Server, left: str
) -> None:
    if left == "dead":
        server.client.zadd(DEAD, {"d": 1})
    else:
        server.client.rpush(keys_of("d")[1], b"old")
    held = claimed(driver)
    assert not server.is_unwritten()
    server.restart()
    assert driver.finish(held.token, success(b"new"))
    server.restart()
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"new",)
    assert driver.run(driver.store.num_dead()) == 0


def test_holder_of_a_forgotten_claim_holds_nothing(driver: StoreDriver, server: Server) -> None:
    old = claimed(driver)
    server.restart()
    assert driver.run(driver.store.heartbeat([old], LEASE_MS)) == [False]
    assert not driver.finish(old.token, success(b"old"))
    assert driver.state() is State.ABSENT
    new = claimed(driver)
    assert not driver.run(driver.store.append(old, OK, 0, [b"old"]))
    assert not driver.finish(old.token, success(b"old"))
    assert driver.finish(new.token, success(b"new"))
    assert not driver.finish(old.token, success(b"old"))
    server.restart()
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"new",)


def test_tokens_rise_over_restarts_to_the_last_digit(driver: StoreDriver, server: Server) -> None:
    tokens = []
    for number in range(6):
        held = claimed(driver, digest=f"d{number}")
        snapshot = driver.read(held.digest)
        assert snapshot is not None
        assert snapshot.record.token == held.token == int(server.client.get(FENCE) or 0)
        tokens.append(held.token)
        if number % 2:
            server.restart()
    assert tokens == sorted(set(tokens))
    assert any(token % 100 for token in tokens), "%.14g would leave zeros"
    assert abs(tokens[0] / 1e6 - time.time()) < 600


def test_tokens_ahead_of_a_clock_that_was_set_back_are_in_the_file(
    runner: asyncio.Runner, server: Server
) -> None:
    now_ms = 2_000_000
    store = RedisStore(server.process.url, now_ms=lambda: now_ms)
    driver = StoreDriver(runner, store, lambda ms: None, lambda: store)
    assert [claimed(driver, digest=digest).token for digest in "ab"] == [
        2_000_000_000,
        2_000_000_001,
    ]
    assert server.is_unwritten("b"), "the clock stands still, and was not set back"
    now_ms = 1_000_000
    assert claimed(driver, digest="c").token == 2_000_000_002
    server.restart()
    assert driver.state("c") is State.PROCESSING
    assert claimed(driver, digest="d").token == 2_000_000_003
    driver.close()


def test_file_that_is_rewritten_meanwhile_has_it_whole_too(
    driver: StoreDriver, server: Server
) -> None:
    held = claimed(driver)
    server.client.bgrewriteaof()
    while server.client.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.01)
    server.restart()
    assert server.is_unwritten(), "the file was written from memory"
    assert driver.run(driver.store.append(held, OK, 0, [b"a"]))
    fields = server.fields()
    server.restart()
    assert server.fields() == fields
    assert driver.finish(held.token, success(b"b", first_chunk=1))
    server.restart()
    snapshot = driver.read()
    assert snapshot is not None
    assert snapshot.chunks == (b"a", b"b")


def test_replica_gets_the_whole_record_with_the_next_write(
    driver: StoreDriver, server: Server, tmp_path: Path
) -> None:
    directory = tmp_path / "replica"
    directory.mkdir()
    replica = Server(RedisProcess(directory))
    replica.process.start()
    try:
        server.client.config_set("repl-diskless-sync-delay", 0)
        replica.client.replicaof("127.0.0.1", server.process.port)
        while replica.client.info("replication")["master_link_status"] != "up":
            time.sleep(0.01)
        held = claimed(driver)
        server.client.set("later", 1)
        assert server.client.wait(1, 60_000) == 1
        assert not replica.fields()
        assert driver.run(driver.store.heartbeat([held], 60_000)) == [True]
        assert server.client.wait(1, 60_000) == 1
        assert replica.fields() == server.fields()
        assert replica.ttl_ms() > 0
    finally:
        replica.client.close()
        replica.process.kill()


def test_request_whose_claim_was_forgotten_is_executed_once_more_and_has_one_answer(
    driver: StoreDriver, server: Server, runner: asyncio.Runner, upstream: ScriptedUpstream
) -> None:
    async def scenario() -> None:
        upstream.script = [hold(answer())]
        async with Harness([upstream], server.process.url) as gateway:
            request = asyncio.create_task(gateway.post())
            await upstream.arrived.wait()
            await asyncio.to_thread(server.restart)
            upstream.release.set()
            answered = await request
            again = await gateway.post()
        assert (answered.status, answered.body) == (200, b'{"n": 2}')
        assert (again.body, again.is_replay) == (answered.body, True)
        assert upstream.num_executed == 2

    runner.run(scenario())
