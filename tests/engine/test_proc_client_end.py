"""How an engine process ends: closed with patience or without, or its parent gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from core_driver import request
from engine_process import collect, engine, expected, run

from takt.errors import (
    EngineDeadError,
)


def test_closing_lets_running_requests_end_and_refuses_new_ones(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()

    async def work() -> None:
        async with engine(f"fake:hold={held}") as client:
            asked = request("a", [1], max_tokens=30, ignore_eos=True)
            task = asyncio.create_task(collect(client, asked))
            while not client.num_outstanding:
                await asyncio.sleep(0)
            pid = client.engine_pid
            closing = asyncio.create_task(client.close(drain_timeout_seconds=100))
            await asyncio.sleep(0)
            with pytest.raises(EngineDeadError, match="stopping"):
                await collect(client, request("b", [1], max_tokens=1))
            held.unlink()
            assert await task == expected(asked)
            await closing
            assert not Path(f"/proc/{pid}").exists()

    run(work())


def test_closing_without_patience_tells_those_that_run(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()

    async def work() -> None:
        async with engine(f"fake:hold={held}") as client:
            task = asyncio.create_task(
                collect(client, request("a", [1], max_tokens=200, ignore_eos=True))
            )
            while not client.num_outstanding:
                await asyncio.sleep(0)
            await client.close(drain_timeout_seconds=0.02)
            with pytest.raises(EngineDeadError):
                await task

    run(work())


PARENT = """
import asyncio, sys
sys.path[:0] = {path!r}
from core_driver import request
from engine_process import collect, engine

async def main():
    async with engine("fake:sleep=1") as client:
        print(client.engine_pid, flush=True)
        if {busy}:
            await collect(client, request("a", [1], max_tokens=250, ignore_eos=True))
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("busy", [False, True])
def test_the_engine_dies_with_its_parent(busy: bool) -> None:
    code = PARENT.format(path=sys.path, busy=busy)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    deadline = time.monotonic() + 100
    while _runs(pid):
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"
