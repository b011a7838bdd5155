"""Tells a webhook of each dead letter. A notice holds no body and no credential."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from takt.gateway.attempt import UpstreamClient

logger = logging.getLogger("takt.gateway")

NUM_TRIES = 3
WAIT_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
MAX_WAITING = 256


class DeadLetterNotice(msgspec.Struct, frozen=True):
    digest: str
    service: str
    operation: str
    cause: str
    num_tries: int


class DeadLetterNotices:
    """Sends in the background; a webhook that stays away is logged, and the letter is kept."""

    def __init__(self, client: UpstreamClient, webhook: str | None) -> None:
        self._client = client
        self._webhook = webhook
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, notice: DeadLetterNotice) -> None:
        logger.warning(
            "dead letter %s of %s after %d tries: %s",
            notice.digest[:16],
            notice.service,
            notice.num_tries,
            notice.cause,
        )
        if self._webhook is None:
            return
        if len(self._tasks) >= MAX_WAITING:
            logger.error("no notice of dead letter %s: too many wait", notice.digest[:16])
            return
        task = asyncio.create_task(self._send(self._webhook, notice))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, webhook: str, notice: DeadLetterNotice) -> None:
        body = msgspec.json.encode(notice)
        for number in range(1, NUM_TRIES + 1):
            if await self._client.post_json(webhook, body, TIMEOUT_SECONDS):
                return
            if number < NUM_TRIES:
                await asyncio.sleep(WAIT_SECONDS * number)
        logger.error("the webhook did not take the notice of %s", notice.digest[:16])
