"""What an operator does with dead letters: list, show, replay, purge."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from takt.errors import ConfigError, TaktError
from takt.gateway.assignment import Assignment
from takt.gateway.attempt import OutgoingRequest
from takt.gateway.build import build_parts, close_parts
from takt.gateway.execution import Execution
from takt.gateway.headers import to_upstream
from takt.gateway.health import HealthChecker
from takt.gateway.http.fields import Headers
from takt.gateway.leader import Leader
from takt.gateway.letter_writer import LetterWriter
from takt.gateway.options import GatewayOptions
from takt.gateway.parts import Parts
from takt.gateway.sealing import EncryptingSealer, PlainSealer, Sealer, read_keys
from takt.gateway.states import Claimed, OnUnknown, Record, State, StoredRequest, Terms
from takt.gateway.store.base import Held, Store
from takt.gateway.store.open import check_exists, make_store

T = TypeVar("T")

MAX_LETTERS = 100_000

MIN_DIGEST_LENGTH = 6


class NoSuchLetterError(TaktError):
    """No dead letter, or more than one, begins with what was given."""


def list_letters(url: str, volatile: bool, limit: int, service: str | None) -> str:
    """A line for each: digest, time, service, operation, attempts, cause."""

    async def work(store: Store) -> str:
        letters = await store.dead_letters(limit, service)
        return "".join(
            f"{letter.digest[:16]}  {_time(letter.updated_ms)}  {letter.service}  "
            f"{letter.operation}  tries {letter.num_attempts}  {letter.cause}\n"
            for letter in letters
        )

    return _with_store(url, volatile, work)


def show_letter(
    url: str, volatile: bool, letter: str, key_file: str | None, with_body: bool
) -> str:
    """Everything that is known of a letter; the body only if asked for."""

    async def work(store: Store) -> str:
        record = await _find(store, letter)
        lines = [
            f"digest     {record.digest}",
            f"key        {record.key}",
            f"service    {record.service}",
            f"operation  {record.operation}",
            f"cause      {record.cause}",
            f"created    {_time(record.created_ms)}",
            f"died       {_time(record.updated_ms)}",
            f"kept until {_time(record.expires_ms)}",
            f"unknown    {record.num_unknown}",
        ]
        lines += [
            f"try {one.number:<6} {one.upstream}  {one.elapsed_ms} ms  {one.cause}, "
            f"then waited {one.wait_ms} ms"
            for one in record.history
        ]
        if with_body:
            request = await _request(store, _reader(key_file), record)
            lines.append(request.body.decode(errors="replace"))
        return "\n".join(lines) + "\n"

    return _with_store(url, volatile, work)


def purge_letters(url: str, volatile: bool, letters: list[str]) -> int:
    """Deletes the letters named, or all; returns how many."""

    async def work(store: Store) -> int:
        if letters:
            digests = [(await _find(store, letter)).digest for letter in letters]
        else:
            digests = [one.digest for one in await store.dead_letters(MAX_LETTERS)]
        return await store.purge(digests)

    return _with_store(url, volatile, work)


def replay_letters(
    options: GatewayOptions,
    letters: list[str],
    authorization_env: str | None,
    report: Callable[[str], None],
) -> int:
    """Sends the letters named, or all, once more; returns how many failed again.

    A success becomes the answer of the key, which the client gets when it asks again. With any
    other end, SIGINT and SIGTERM among them, the letter stays.
    """
    check_exists(options.store_url)
    authorization = None
    if authorization_env is not None:
        authorization = os.environ.get(authorization_env)
        if not authorization:
            raise ConfigError(f"the environment variable {authorization_env} is not set")
        if not (authorization.isascii() and authorization.isprintable()):
            raise ConfigError(
                f"the environment variable {authorization_env} holds characters that cannot "
                "stand in a header"
            )

    async def work() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        num_failed = 0
        parts = await build_parts(options)
        beats = asyncio.create_task(parts.keeper.run())
        try:
            interval_ms = options.health_interval_ms
            await HealthChecker(parts.router, parts.client, interval_ms).check_all()
            if letters:
                records = [await _find(parts.store, letter) for letter in letters]
            else:
                records = await parts.store.dead_letters(MAX_LETTERS)
            for record in records:
                end = await _replay(parts, record, authorization)
                report(f"{record.digest[:16]}  {end}")
                num_failed += end != State.SUCCEEDED
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            await close_parts(parts)
        return num_failed

    try:
        return asyncio.run(work())
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None


async def _replay(parts: Parts, record: Record, authorization: str | None) -> str:
    """How it ended: the state that the letter is in now, and why."""
    stored = await _request(parts.store, parts.sealer, record)
    request = _outgoing(stored, authorization)
    route = parts.policy.route_of(stored.path_and_query.partition("?")[0])
    ttl = parts.policy.ttl
    terms = Terms(
        claim_id=uuid.uuid4().hex,
        owner="dlq",
        lease_ms=parts.options.lease_ms,
        ttl_ms=1000 * max(ttl.processing, ttl.dead),  # the letter's, if the replay is killed
        failed_ttl_ms=1000 * ttl.failed_final,
        upstream="",
        deduplicates=False,
        on_unknown=parts.on_unknown(route),
    )
    claim = await parts.store.revive(record.digest, terms)
    if not isinstance(claim, Claimed):
        return State.ABSENT
    execution = Execution(record.fingerprint)
    held = Held(record.digest, claim.token)
    writer = LetterWriter(parts.store, parts.sealer, held, execution, ttl)
    assignment = Assignment(
        route=route,
        request=request,
        key=stored.key,
        digest=record.digest,
        deadline_ns=parts.clock.now_ns() + route.retry.deadline_ms * 1_000_000,
        may_repeat=terms.on_unknown is OnUnknown.RETRY,
    )
    span = parts.tracing.request(record.service, f"replay {record.operation}", {})
    parts.keeper.add(writer)
    try:
        await Leader(parts, assignment, execution, writer, span).run(None)
    finally:
        parts.keeper.remove(writer)
        if execution.state is State.PROCESSING:
            await writer.interrupt()
    if execution.state is State.SUCCEEDED:
        return State.SUCCEEDED
    return f"{State.DEAD}  {writer.cause}"


def _outgoing(stored: StoredRequest, authorization: str | None) -> OutgoingRequest:
    headers = to_upstream(Headers(stored.headers))
    if authorization is not None:
        headers.append(("Authorization", authorization))
    return OutgoingRequest(stored.method, stored.path_and_query, headers, stored.body)


async def _request(store: Store, sealer: Sealer, record: Record) -> StoredRequest:
    sealed = await store.request_of(record.digest)
    if sealed is None:
        raise NoSuchLetterError(
            f"the request of {record.digest[:16]} was not kept (--bodies-at-rest off)"
        )
    return msgspec.msgpack.decode(sealer.unseal(record.digest, sealed), type=StoredRequest)


async def _find(store: Store, letter: str) -> Record:
    if len(letter) < MIN_DIGEST_LENGTH:
        raise NoSuchLetterError(f"{letter!r} is too short: give {MIN_DIGEST_LENGTH} characters")
    letters = await store.dead_letters(MAX_LETTERS)
    found = [one for one in letters if one.digest.startswith(letter)]
    if len(found) != 1:
        raise NoSuchLetterError(
            f"{len(found)} dead letters begin with {letter!r}; takt dlq list shows them all"
        )
    return found[0]


def _reader(key_file: str | None) -> Sealer:
    return PlainSealer() if key_file is None else EncryptingSealer(read_keys(Path(key_file)))


def _with_store(url: str, volatile: bool, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    check_exists(url)

    async def run() -> T:
        store = make_store(url, volatile=volatile)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _time(wall_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ms / 1000))
