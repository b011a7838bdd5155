from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from gateway_process import GatewayProcess
from redis_process import RedisProcess
from scripted_upstream import ScriptedUpstream
from store_driver import StoreDriver, make_driver

from takt.gateway.store import redis as redis_store


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    # Thousands of writes would each wait for the disk.
    process = RedisProcess(tmp_path_factory.mktemp("redis"), appendfsync="everysec")
    process.start()
    yield process
    process.kill()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def claims_as_if_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Redis whose replies wait for no disk, claims as on one whose replies do."""

    async def fsync(client: redis.asyncio.Redis) -> str:
        return "always"

    monkeypatch.setattr(redis_store, "_fsync", fsync)


@pytest.fixture(params=["sqlite", "redis"])
def driver(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    runner: asyncio.Runner,
    redis_process: RedisProcess,
    claims_as_if_synced: None,
) -> Iterator[StoreDriver]:
    driver = make_driver(request.param, runner, tmp_path, redis_process)
    yield driver
    driver.close()


@pytest.fixture(params=["sqlite", "redis"])
def store_url(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    redis_process: RedisProcess,
    claims_as_if_synced: None,
) -> str:
    """An empty store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    with redis.Redis.from_url(redis_process.url) as client:
        client.flushall()
    return redis_process.url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def upstream(runner: asyncio.Runner) -> Iterator[ScriptedUpstream]:
    scripted = ScriptedUpstream()
    runner.run(scripted.start())
    yield scripted
    runner.run(scripted.stop())


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., GatewayProcess]]:
    """Starts gateways as processes; those that still run at the test's end are killed."""
    started: list[GatewayProcess] = []

    def start(*arguments: str) -> GatewayProcess:
        started.append(GatewayProcess(*arguments))
        return started[-1]

    yield start
    for gateway in started:
        gateway.kill()
