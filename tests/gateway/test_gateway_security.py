"""Limits, secrets, and bodies at rest."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import sqlite3
from pathlib import Path

import pytest
from harness import BODY, PATH, Harness, code_of
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from scripted_upstream import STREAM, ScriptedUpstream, answer, stream

from takt.errors import ConfigError
from takt.gateway.otel_tracing import OtelTracing
from takt.gateway.sealing import EncryptingSealer, PlainSealer, SealError, make_sealer, read_keys


def test_oversized_bodies_and_keys_are_refused_and_nothing_is_executed(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def pieces() -> object:
        for _ in range(20):
            yield b"x" * 100

    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, max_request_bytes=1000) as gateway:
            big = await gateway.post(data=b"x" * 1001)
            chunked = await gateway.post(data=pieces())  # type: ignore[arg-type]
            long_key = await gateway.post("k" * 256)
            bad_key = await gateway.post("k\u00e9")
            served = await gateway.post("k" * 255)
        assert [big.status, chunked.status] == [413, 413]
        assert code_of(long_key) == "idempotency_key_too_long"
        assert code_of(bad_key) == "idempotency_key_invalid"
        assert served.status == 200
        assert upstream.num_executed == 1

    runner.run(scenario())


def test_key_can_be_required(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, require_key=True) as gateway:
            missing = await gateway.post(None)
            listed = await gateway.post(None, path="/v1/models", method="GET", data=b"")
        assert code_of(missing) == "idempotency_key_missing"
        assert listed.status == 200

    runner.run(scenario())


def test_each_tenant_has_a_rate_of_its_own(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url, rate_limit=2) as gateway:
            mine = [
                await gateway.post(f"k{i}", headers={"Authorization": "Bearer a"}) for i in range(3)
            ]
            other = await gateway.post(headers={"Authorization": "Bearer b"})
        assert [one.status for one in mine] == [200, 200, 429]
        assert mine[2].headers["Retry-After"] == "1"
        assert other.status == 200

    runner.run(scenario())


def key_file(directory: Path, *keys: bytes) -> str:
    path = directory / "keys"
    path.write_text("\n".join(base64.b64encode(key).decode() for key in keys))
    return str(path)


def test_encrypted_store_holds_no_readable_body(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        options = {
            "bodies_at_rest": "encrypted",
            "encryption_key_file": key_file(tmp_path, os.urandom(32)),
        }
        async with Harness([upstream], sqlite_url, retry={"max_tries": 1}, **options) as gateway:
            upstream.default = answer(text='"marvellous"')
            first, second = await gateway.post(), await gateway.post()
            upstream.default = stream()
            streamed = [await gateway.post("s"), await gateway.post("s")]
            upstream.default = answer(500)
            await gateway.post("dead", body=BODY | {"user": "unmistakable"})
        assert first.body == second.body == b'"marvellous"'
        assert {one.body for one in streamed} == {STREAM}
        stored = b"".join(path.read_bytes() for path in tmp_path.glob("store.db*"))
        for secret in (b"marvellous", b"token 1", b"unmistakable"):
            assert secret not in stored

    runner.run(scenario())


def test_bodies_that_are_not_kept_are_not_given_again(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        upstream.default = answer(text='"marvellous"')
        async with Harness([upstream], sqlite_url, bodies_at_rest="off") as gateway:
            first, second = await gateway.post(), await gateway.post()
            upstream.default = answer(500)
            async with Harness(
                [upstream], sqlite_url, bodies_at_rest="off", retry={"max_tries": 1}
            ) as other:
                await other.post("dead", body=BODY | {"user": "unmistakable"})
        assert first.body == b'"marvellous"'
        assert (second.status, code_of(second)) == (409, "result_not_kept")
        assert upstream.num_executed == 1
        with sqlite3.connect(tmp_path / "store.db") as db:
            assert db.execute("SELECT count(*) FROM chunks").fetchone() == (0,)
            assert db.execute("SELECT count(*) FROM requests").fetchone() == (0,)
        db.close()

    runner.run(scenario())


def test_store_is_readable_by_its_owner_only(
    runner: asyncio.Runner, upstream: ScriptedUpstream, sqlite_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Harness([upstream], sqlite_url) as gateway:
            await gateway.post()
            modes = {path.stat().st_mode & 0o777 for path in tmp_path.glob("store.db*")}
        assert modes == {0o600}

    runner.run(scenario())


def test_sealed_bodies_open_only_in_their_record_with_their_key() -> None:
    old, new = os.urandom(32), os.urandom(32)
    sealed = EncryptingSealer([old]).seal("d", b"body")
    rotated = EncryptingSealer([new, old])
    assert rotated.unseal("d", sealed) == b"body"
    assert rotated.secret == EncryptingSealer([old]).secret, "hashes of bodies stay comparable"
    with pytest.raises(SealError, match="altered"):
        rotated.unseal("other", sealed)
    with pytest.raises(SealError, match="not in the key file"):
        EncryptingSealer([new]).unseal("d", sealed)
    with pytest.raises(SealError, match="encrypted"):
        PlainSealer().unseal("d", sealed)
    assert rotated.unseal("d", PlainSealer().seal("d", b"before")) == b"before"


@pytest.mark.parametrize("content", ["", "c2hvcnQ=", "not base64!"])
def test_key_file_that_holds_no_keys_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ConfigError, match="key"):
        read_keys(path)


def test_encryption_and_its_key_need_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--encryption-key-file"):
        make_sealer("encrypted", None)
    with pytest.raises(ConfigError, match="--bodies-at-rest"):
        make_sealer("plain", key_file(tmp_path, os.urandom(32)))


class Collected(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[object] = []

    def export(self, spans: object) -> SpanExportResult:
        self.spans.extend(spans)  # type: ignore[call-overload]
        return SpanExportResult.SUCCESS


def test_spans_tell_states_and_attempts_and_no_secret(
    runner: asyncio.Runner,
    upstream: ScriptedUpstream,
    sqlite_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    collected = Collected()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def scenario() -> None:
        upstream.script = [answer(500)]
        async with Harness([upstream], sqlite_url, retry={"max_tries": 3}) as gateway:
            tracing = OtelTracing("http://unused", collected)
            object.__setattr__(gateway.parts, "tracing", tracing)
            headers = {"Authorization": "Bearer secret-1", "traceparent": parent}
            await gateway.post(headers=headers)
            await gateway.post(headers=headers)
            upstream.default = answer(500)
            await gateway.post("dead", headers=headers)

    runner.run(scenario())
    spans = [json.loads(span.to_json()) for span in collected.spans]  # type: ignore[attr-defined]
    attempts = [one["attributes"] for one in spans if one["name"] == "gateway attempt"]
    assert [(one["retry_attempt"], one["is_final"]) for one in attempts] == [
        (1, False),
        (2, True),
        (1, False),
        (2, False),
        (3, True),
    ]
    requests = [one for one in spans if one["name"] == f"gateway POST {PATH}"]
    assert [one["attributes"]["idempotency.state"] for one in requests] == [
        "succeeded",
        "succeeded",
        "dead",
    ]
    assert {one["context"]["trace_id"] for one in spans} == {"0x" + parent.split("-")[1]}
    assert upstream.seen[0].headers["traceparent"].split("-")[1] == parent.split("-")[1]
    for text in (json.dumps(spans), caplog.text):
        assert "secret-1" not in text
        assert "hello" not in text
