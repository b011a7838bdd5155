from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_process import RedisProcess
from store_driver import StoreDriver, make_driver


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    process.start()
    yield process
    process.kill()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["sqlite", "redis"])
def driver(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    runner: asyncio.Runner,
    redis_process: RedisProcess,
) -> Iterator[StoreDriver]:
    driver = make_driver(request.param, runner, tmp_path, redis_process)
    yield driver
    driver.close()
