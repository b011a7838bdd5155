"""Requests through two gateways on one store while everything around them fails and is killed."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
from benchmarks.gateway.processes import Process, Rig, rig

from takt.gateway.keys import KeyRules, Tenants, request_key
from takt.gateway.store.open import make_store

PATH = "/v1/completions"
LEASE_MS = 1_500
TAKT_MODES = ("takt", "engine")
TAKT_MODEL = "smollm2-135m"
ENGINE_MODULE = "takt.engine.process"
TAKT_START_SECONDS = 300.0
MAX_TRIES = 400
FIRST_KILL_SECONDS, KILL_EVERY_SECONDS = 1.0, 4.0
RESTART_SECONDS = 0.3

FORGETS_SECONDS = 0.25
"""How long before Redis is killed an attempt may have begun whose claim it forgets: some 50 ms, and
more where processes wait for a CPU."""

POLICY = """
[retry]
base_ms = 20
cap_ms = 500
max_tries = 8
response_timeout_ms = 1500
idle_timeout_ms = 3000
budget_percent = 100.0

[[upstreams]]
url = "{url}"
deduplicates = {deduplicates}
"""


@dataclass
class Outcome:
    """What the clients saw."""

    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    num_tries: int = 0
    inconsistent: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def body_of(number: int) -> bytes:
    """Sampled without a seed: Takt gives another text for each execution, and another id."""
    return json.dumps(
        {
            "prompt": f"p{number}",
            "stream": number % 2 == 1,
            "max_tokens": 4,
            "temperature": 1.0,
        }
    ).encode()


async def run(
    store: str, mode: str, num_requests: int, num_clients: int, *, kills: bool = True
) -> bool:
    """`store`: sqlite or redis. `mode`: retry, fail, dedup (an upstream that deduplicates), takt
    (Takt's own server as such an upstream, behind a proxy that breaks connections), or engine (the
    same, and Takt's engine is killed too).

    Prints a report; True if every bar held.
    """
    with rig() as made:
        upstream, faulty = _upstream(made, mode)
        redis = made.redis() if store == "redis" else None
        if redis is not None:
            redis.start()
        url = (
            f"redis://127.0.0.1:{redis.port}/0" if redis else f"sqlite:///{made.directory}/store.db"
        )
        gateways = _gateways(made, url, faulty, mode)
        begin = time.monotonic()
        outcome = Outcome()
        stop = asyncio.Event()
        victims: list[Victim] = [
            _Restarted(one) for one in [*([redis] if redis else []), *gateways]
        ]
        if mode == "engine":
            victims.insert(0, _Engine(upstream))
        killer = asyncio.create_task(_kill(victims, stop if kills else None))
        await _clients(outcome, gateways, num_requests, num_clients)
        stop.set()
        await killer
        seconds = time.monotonic() - begin
        forgotten: Counter[str] = Counter()
        if mode in TAKT_MODES:
            executions = await _takt_executions(upstream, num_requests)
        else:
            times = await _execution_times(upstream)
            executions = Counter({key: len(begun) for key, begun in times.items()})
            if redis is not None and mode == "retry":
                forgotten = _forgotten(times, redis.kill_times_s)
        unknown = await _unknown(url, num_requests)
        killed = f"gateways {sum(g.num_kills for g in gateways)}"
        killed += f", redis {redis.num_kills}" if redis else ""
        killed += f", engine {upstream.num_child_kills}" if mode == "engine" else ""
        return _report(
            f"{store} {mode}", outcome, executions, unknown, forgotten, seconds, killed, mode
        )


def _upstream(made: Rig, mode: str) -> tuple[Process, Process]:
    """The server, and where the gateway asks for it."""
    if mode in TAKT_MODES:
        server = made.takt(TAKT_MODEL)
        server.start(wait=False)
        server.wait_ready(TAKT_START_SECONDS)
        proxy = made.fault_proxy(server)
        proxy.start()
        return server, proxy
    server = made.upstream("--faults", *(["--deduplicate"] if mode == "dedup" else []))
    server.start()
    return server, server


def _gateways(made: Rig, url: str, upstream: Process, mode: str) -> list[Process]:
    policy = made.directory / "policy.toml"
    deduplicates = "true" if mode in ("dedup", *TAKT_MODES) else "false"
    policy.write_text(POLICY.format(url=upstream.url, deduplicates=deduplicates))
    flags = ["--policy", str(policy), "--lease-ms", str(LEASE_MS), "--health-interval-ms", "200"]
    flags += ["--on-unknown", "retry" if mode == "retry" else "fail"]
    gateways = [made.gateway(url, *flags) for _ in range(2)]
    for gateway in gateways:
        gateway.start()
    return gateways


class Victim(Protocol):
    def kill(self) -> None: ...

    def revive(self) -> None:
        """Returns once it serves again."""
        ...


class _Restarted:
    def __init__(self, process: Process) -> None:
        self._process = process

    def kill(self) -> None:
        self._process.kill()

    def revive(self) -> None:
        self._process.start()


class _Engine:
    """Takt's engine process, which its server starts again by itself."""

    def __init__(self, server: Process) -> None:
        self._server = server

    def kill(self) -> None:
        self._server.kill_child(ENGINE_MODULE)

    def revive(self) -> None:
        self._server.wait_ready(TAKT_START_SECONDS)


async def _kill(victims: list[Victim], stop: asyncio.Event | None) -> None:
    """One after the other is killed and comes back, until the clients are done."""
    if stop is None:
        return
    await asyncio.sleep(FIRST_KILL_SECONDS)
    number = 0
    while not stop.is_set():
        victim = victims[number % len(victims)]
        number += 1
        victim.kill()
        await asyncio.sleep(RESTART_SECONDS)
        await asyncio.to_thread(victim.revive)
        try:
            await asyncio.wait_for(stop.wait(), KILL_EVERY_SECONDS)
        except TimeoutError:
            continue


async def _clients(
    outcome: Outcome, gateways: list[Process], num_requests: int, num_clients: int
) -> None:
    numbers = iter(range(num_requests))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            for number in numbers:
                key = f"k{number}"
                first = await _ask(session, gateways, key, number, rng, outcome)
                if first is None:
                    outcome.lost.append(key)
                    continue
                outcome.answers[key] = first
                if rng.random() < 0.3:
                    again = await _ask(session, gateways, key, number, rng, outcome)
                    if again != first:
                        outcome.inconsistent.append(key)

        await asyncio.gather(*(client(seed) for seed in range(num_clients)))


async def _ask(
    session: aiohttp.ClientSession,
    gateways: list[Process],
    key: str,
    number: int,
    rng: random.Random,
    outcome: Outcome,
) -> tuple[int, bytes] | None:
    """As a careful client does: the same key until there is an answer that is one."""
    for _ in range(MAX_TRIES):
        outcome.num_tries += 1
        gateway = rng.choice(gateways)
        try:
            async with session.post(
                gateway.url + PATH,
                data=body_of(number),
                headers={"Idempotency-Key": key, "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=60),
            ) as response:
                body = await response.read()
                if response.status == 200 and _is_whole(body):
                    return response.status, body
                if _is_final(response.status, body):
                    return response.status, body
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        await asyncio.sleep(rng.uniform(0.02, 0.2))
    return None


def _is_whole(body: bytes) -> bool:
    return b"[DONE]" in body or not body.startswith(b"data:")


def _is_final(status: int, body: bytes) -> bool:
    """An answer that will not change: the gateway says so by its code."""
    if b"outcome_unknown" in body or b"dead_letter" in body or b'"broken"' in body:
        return True
    return b'"failed_final"' in body


async def _execution_times(upstream: Process) -> dict[str, list[float]]:
    """When each key's executions began, on the monotonic clock."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(upstream.url + "/execution_times") as response,
    ):
        times: dict[str, list[float]] = await response.json()
        return times


def _forgotten(times: dict[str, list[float]], kill_times_s: list[float]) -> Counter[str]:
    """Of each key: attempts in flight when Redis was killed that it may know nothing of. Those that
    began before it was back were claimed before it went."""
    return Counter(
        key
        for key, begun in times.items()
        for begin in begun
        if any(-FORGETS_SECONDS < begin - kill < RESTART_SECONDS for kill in kill_times_s)
    )


_SUCCESS = re.compile(r'finished_reason="(stop|length)"')


async def _takt_executions(server: Process, num_requests: int) -> Counter[str]:
    """Takt counts requests that ended, not keys: what exceeds one for each is executed twice.

    Those that a death of the engine ended are no successes, and are not counted.
    """
    async with aiohttp.ClientSession() as session, session.get(server.url + "/metrics") as response:
        text = await response.text()
    ended = sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("takt_request_success_total{") and _SUCCESS.search(line)
    )
    return Counter({"takt": 1 + max(0, round(ended) - num_requests)})


async def _unknown(url: str, num_requests: int) -> dict[str, tuple[int, int]]:
    """Of each key: attempts of unknown outcome, by death of a gateway and by upstream faults."""
    store = make_store(url)
    await store.open()
    found = {}
    for number in range(num_requests):
        key = request_key(
            method="POST",
            path=PATH,
            query="",
            headers={"Idempotency-Key": f"k{number}"},
            body=body_of(number),
            service="default",
            tenant=Tenants(KeyRules()).of({}),
            rules=KeyRules(),
        )
        assert key is not None
        snapshot = await store.read(key.identity.digest)
        if snapshot is not None:
            history = snapshot.record.history
            by_fault = sum(one.cause.startswith(("reset", "timeout", "stream")) for one in history)
            found[f"k{number}"] = (snapshot.record.num_unknown, by_fault)
    await store.close()
    return found


def _report(
    name: str,
    outcome: Outcome,
    executions: Counter[str],
    unknown: dict[str, tuple[int, int]],
    forgotten: Counter[str],
    seconds: float,
    killed: str,
    mode: str,
) -> bool:
    statuses = Counter(status for status, _ in outcome.answers.values())
    extras = {key: count - 1 for key, count in executions.items() if count > 1}
    by_death = sum(deaths for deaths, _ in unknown.values())
    by_fault = sum(faults for _, faults in unknown.values())
    by_record = {key: sum(unknown.get(key, (0, 0))) for key in extras}
    unexplained = [k for k, extra in extras.items() if extra > by_record[k] + forgotten[k]]
    by_kill = sum(min(max(0, extra - by_record[k]), forgotten[k]) for k, extra in extras.items())
    print(
        f"{name:13} {len(outcome.answers)} answers in {seconds:.0f} s {dict(statuses)}, "
        f"client tries {outcome.num_tries}, killed: {killed}\n"
        f"{'':13} lost {len(outcome.lost)}, inconsistent {len(outcome.inconsistent)}, "
        f"executed twice {len(extras)} (extra executions {sum(extras.values())}; unknown outcomes: "
        f"{by_death} by a gateway's death, {by_fault} by the upstream; "
        f"{by_kill} more, of {forgotten.total()} that a killed Redis may have forgotten; "
        f"unexplained {len(unexplained)})"
    )
    holds = not outcome.lost and not outcome.inconsistent and not unexplained
    if mode != "retry":
        holds = holds and not extras
    return holds
