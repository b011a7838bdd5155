"""A second attempt beside a slow one; the first to answer wins, the other is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from takt.gateway.attempt import OpenAnswer
from takt.gateway.upstream import Upstream

Send = Callable[[Upstream], Awaitable[OpenAnswer]]


async def send_hedged(
    first: Upstream,
    send: Send,
    *,
    after_ms: int,
    choose_second: Callable[[], Upstream | None],
) -> tuple[Upstream, OpenAnswer]:
    """The first answer and who gave it; the first upstream's failure if nobody answers.

    `choose_second` is asked once `after_ms` have passed without an answer; None means that there
    is no second.
    """
    leading: asyncio.Future[OpenAnswer] = asyncio.ensure_future(send(first))
    tasks: dict[asyncio.Future[OpenAnswer], Upstream] = {leading: first}
    winner: asyncio.Future[OpenAnswer] | None = None
    try:
        await asyncio.wait(tasks, timeout=after_ms / 1000)
        if not leading.done():
            second = choose_second()
            if second is not None:
                tasks[asyncio.ensure_future(send(second))] = second
        winner = await _first_success(tasks) or leading
        return tasks[winner], winner.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if task is not winner and not task.cancelled() and task.exception() is None:
                task.result().close()


async def _first_success(
    tasks: dict[asyncio.Future[OpenAnswer], Upstream],
) -> asyncio.Future[OpenAnswer] | None:
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task
    return None
