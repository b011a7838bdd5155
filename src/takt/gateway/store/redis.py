"""The shared store: Redis or Valkey, for gateways on several hosts. Leases run on its clock.

With `appendfsync always` Redis replies once its file is on the disk. A claim that need not wait for
that (`claim.lua`) is in its memory alone, "unwritten", until its holder's next script or for some
50 ms.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from takt.errors import ConfigError
from takt.gateway.states import (
    Attempt,
    Claim,
    Claimed,
    Finish,
    Head,
    Identity,
    Mismatch,
    Record,
    Running,
    Settled,
    State,
    Terms,
)
from takt.gateway.store.base import LEASES_PER_TTL, Held, Snapshot, StoreUnavailableError
from takt.gateway.store.history import decode_head, decode_history, encode_attempt, encode_head
from takt.gateway.store.redis_confirm import ClaimConfirmer
from takt.gateway.store.redis_pipe import Argument, ScriptPipe
from takt.gateway.store.redis_scripts import DEAD, PREFIX, fields_of, keys_of, load_scripts

logger = logging.getLogger("takt.gateway")

_PROBE = ("SET", PREFIX + "probe", 1, "PX", 1000)
"""A write, whatever else there is."""

_OPTIONS = (
    "db",
    "username",
    "password",
    "client_name",
    "socket_keepalive",
    "health_check_interval",
)
"""Of a URL, with those that begin with `ssl_`. The library takes any of its own arguments, some of
which change its answers, and some fail in its midst."""

TIMEOUT_SECONDS = 2.0
NUM_RETRIES = 2


class RedisStore:
    """Implements `Store`. Every change is one Lua script, safe to send again."""

    def __init__(
        self, url: str, *, volatile: bool = False, now_ms: Callable[[], int] | None = None
    ) -> None:
        """`now_ms` stands in for the server's clock in tests.

        Raises `ConfigError` for a URL that is none of Redis's.
        """
        self._may_forget = volatile
        self._waits_for_disk = True
        """Whether replies do. A Redis that does not tell may."""
        self._now_ms = now_ms or (lambda: 0)
        self._backoff = ExponentialWithJitterBackoff(cap=0.2, base=0.02)
        self._url = url
        _check_options(url)
        try:
            self._pipe = ScriptPipe(url, TIMEOUT_SECONDS)
        except Exception:  # an option in the query fails in the library wherever it is used
            # What it says may hold a part of the password.
            raise ConfigError(
                "--store is no URL of a Redis, or has options that none has: it should be "
                "redis://[:PASSWORD@]HOST:PORT/DB"
            ) from None
        self._name = _without_password(url)
        self._scripts = load_scripts()
        self._confirmer = ClaimConfirmer(
            lambda held: self._script("confirm", held.digest, held.token)
        )

    async def open(self) -> None:
        client: Redis = Redis.from_url(
            self._url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(self._backoff, NUM_RETRIES),
        )
        async with client:
            await self._check(client)

    async def _check(self, client: Redis) -> None:
        try:
            persistence: dict[str, Any] = await client.info("persistence")
            memory: dict[str, Any] = await client.info("memory")
        except (RedisError, OSError) as error:
            raise ConfigError(f"the store {self._name} does not answer: {error}") from None
        try:
            await client.execute_command(*_PROBE)  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            raise ConfigError(f"the store {self._name} takes no writes: {error}") from None
        fsync = await _fsync(client) if persistence.get("aof_enabled") else "no"
        self._waits_for_disk = fsync == "always"
        if self._may_forget:
            return
        if not persistence.get("aof_enabled"):
            raise ConfigError(
                f"the store {self._name} keeps no append-only file, so a restart would forget "
                "what was executed; set appendonly yes, or pass --store-volatile to accept that"
            )
        if memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction":
            raise ConfigError(
                f"the store {self._name} may evict records (maxmemory-policy "
                f"{memory.get('maxmemory_policy')}); set noeviction, or pass --store-volatile"
            )
        if fsync != "always":
            logger.warning(
                "the store's appendfsync is %s: a crash of its host may forget the last moments; "
                "only appendfsync always keeps every answer that was given",
                fsync,
            )

    async def close(self) -> None:
        await self._confirmer.close()
        await self._pipe.close()

    async def ping(self, *, writes: bool = False) -> None:
        await self._command(*(_PROBE if writes else ("PING",)))

    async def claim(self, identity: Identity, terms: Terms) -> Claim:
        answer = await self._script(
            "claim",
            identity.digest,
            identity.digest,
            terms.claim_id,
            terms.owner,
            terms.lease_ms,
            terms.ttl_ms,
            terms.failed_ttl_ms,
            terms.upstream,
            int(terms.deduplicates),
            terms.on_unknown.value,
            int(terms.allow_takeover),
            identity.fingerprint,
            identity.key,
            identity.tenant,
            identity.service,
            identity.operation,
            int(self._waits_for_disk),
        )
        kind = answer[0]
        if kind == b"claimed":
            token, num_attempts, taken_over, was_in_flight, upstream, is_unwritten = answer[1:]
            if is_unwritten:
                self._confirmer.add(Held(identity.digest, token))
            return Claimed(
                token, num_attempts, bool(taken_over), bool(was_in_flight), upstream.decode()
            )
        if kind == b"running":
            return Running(answer[1])
        if kind == b"settled":
            return Settled(State(answer[1].decode()), settled_now=bool(answer[2]))
        return Mismatch()

    async def heartbeat(self, held: Sequence[Held], lease_ms: int) -> list[bool]:
        return list(
            await asyncio.gather(
                *(self._as_holder("heartbeat", one, lease_ms, LEASES_PER_TTL) for one in held)
            )
        )

    async def begin_attempt(self, held: Held, upstream: str, deduplicates: bool) -> bool:
        return await self._as_holder("begin_attempt", held, upstream, int(deduplicates))

    async def end_attempt(self, held: Held, attempt: Attempt) -> bool:
        return await self._as_holder("end_attempt", held, encode_attempt(attempt))

    async def append(
        self, held: Held, head: Head, first_chunk: int, chunks: Sequence[bytes]
    ) -> bool:
        return await self._as_holder("append", held, encode_head(head), first_chunk, *chunks)

    async def finish(self, held: Held, finish: Finish) -> bool:
        return await self._as_holder(
            "finish",
            held,
            finish.state.value,
            finish.ttl_ms,
            encode_head(finish.head),
            finish.cause,
            encode_attempt(finish.attempt) if finish.attempt else b"",
            int(finish.request is not None),
            finish.request or b"",
            held.digest,
            finish.first_chunk,
            *finish.chunks,
        )

    async def read(self, digest: str, first_chunk: int | None = None) -> Snapshot | None:
        answer = await self._script("read", digest, -1 if first_chunk is None else first_chunk)
        if not answer:
            return None
        now_ms, flat, history, chunks = answer
        return Snapshot(_record(fields_of(flat), history, now_ms), tuple(chunks))

    async def request_of(self, digest: str) -> bytes | None:
        result: bytes | None = await self._command("GET", keys_of(digest)[2])
        return result

    async def dead_letters(self, limit: int, service: str | None = None) -> list[Record]:
        for digest in await self._dead_digests(replayed=True):
            await self._script("lapse", digest, digest)
        records: list[Record] = []
        for digest in await self._dead_digests():
            if len(records) == limit:
                break
            snapshot = await self.read(digest)
            if snapshot is None or snapshot.record.state is not State.DEAD:
                continue
            if service in (None, snapshot.record.service):
                records.append(snapshot.record)
        return records

    async def revive(self, digest: str, terms: Terms) -> Claimed | None:
        answer = await self._script(
            "revive",
            digest,
            digest,
            terms.claim_id,
            terms.owner,
            terms.lease_ms,
            terms.ttl_ms,
            terms.upstream,
            int(terms.deduplicates),
        )
        return Claimed(answer[0], answer[1], False, False, "") if answer else None

    async def purge(self, digests: Sequence[str]) -> int:
        return sum([int(await self._script("purge", digest, digest)) for digest in digests])

    async def sweep(self, limit: int) -> int:
        """Records end by themselves; this takes ended ones off the list of dead letters."""
        num_gone = 0
        for digest in (await self._dead_digests())[:limit]:
            if await self.read(digest) is None:
                num_gone += await self._command("ZREM", DEAD, digest)
        return num_gone

    async def num_dead(self) -> int:
        return int(await self._command("ZCOUNT", DEAD, "(0", "+inf"))

    async def _dead_digests(self, *, replayed: bool = False) -> list[str]:
        """All, or those whose replay has not ended."""
        last = "0" if replayed else "+inf"
        found = await self._command("ZRANGEBYSCORE", DEAD, "0", last)
        return [digest.decode() for digest in found]

    async def _as_holder(self, name: str, held: Held, *arguments: Argument) -> bool:
        """The script's answer. It leaves the claim durable, or found it lost."""
        is_held = bool(await self._script(name, held.digest, held.token, *arguments))
        self._confirmer.discard(held)
        return is_held

    async def _script(self, name: str, digest: str, *arguments: Argument) -> Any:
        script, keys, given = self._scripts[name], keys_of(digest), (self._now_ms(), *arguments)
        return await self._repeat(lambda: self._pipe.run(script, keys, given))

    async def _command(self, *command: Argument) -> Any:
        return await self._repeat(lambda: self._pipe.send(*command))

    async def _repeat(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Sent again where the connection broke: what ran already has its one effect."""
        num_failures = 0
        while True:
            try:
                return await send()
            except (RedisError, OSError) as error:
                num_failures += 1
                is_broken = isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
                if not is_broken or num_failures > NUM_RETRIES:
                    raise StoreUnavailableError(
                        f"the store {self._name} failed: {error}"
                    ) from error
            await asyncio.sleep(self._backoff.compute(num_failures))


async def _fsync(client: Redis) -> str:
    """The setting; `always` where the server keeps it to itself."""
    try:
        answer = await client.config_get("appendfsync")
    except RedisError:
        return "always"
    return answer.get("appendfsync") or "always"


def _check_options(url: str) -> None:
    """Raises `ConfigError` for an option that is not for users. What stands where a name should may
    be a part of the password: it is not repeated."""
    try:
        options = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    except ValueError:
        return  # the library says what a URL is
    if all([name in _OPTIONS or name.startswith("ssl_") for name, _ in options]):
        return
    raise ConfigError(
        f"--store has an option that redis:// URLs have not; there are {', '.join(_OPTIONS)}, and "
        "ssl_* with rediss://"
    )


def _without_password(url: str) -> str:
    """What follows the host's database may hold one too, with an @ in it."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + re.split("[?#]", rest, maxsplit=1)[0].rpartition("@")[2]


def _record(fields: dict[str, bytes], history: list[bytes], now_ms: int) -> Record:
    def text(name: str) -> str:
        return fields[name].decode()

    def number(name: str) -> int:
        return int(fields[name])

    state = State(text("state"))
    return Record(
        digest=text("digest"),
        fingerprint=text("fingerprint"),
        key=text("key"),
        tenant=text("tenant"),
        service=text("service"),
        operation=text("operation"),
        state=state,
        token=number("token"),
        owner=text("owner"),
        is_lease_alive=state is State.PROCESSING and number("lease_until_ms") > now_ms,
        in_flight=bool(number("in_flight")),
        upstream=text("upstream"),
        deduplicates=bool(number("deduplicates")),
        num_attempts=number("num_attempts"),
        num_unknown=number("num_unknown"),
        num_chunks=number("num_chunks"),
        cause=text("cause"),
        created_ms=number("created_ms"),
        updated_ms=number("updated_ms"),
        expires_ms=number("expires_ms"),
        head=decode_head(fields["head"]),
        history=decode_history(b"[" + b",".join(history) + b"]"),
    )
