"""Reads one streamed answer into its record."""

from __future__ import annotations

from typing import Any

import msgspec

from takt.bench.event_stream import EventSplitter, EventTooLargeError
from takt.bench.record import RequestRecord, Usage

_MAX_DETAIL_BYTES = 2000


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        if self.text:
            return True
        d = self.delta
        return d is not None and bool(d.content or d.reasoning or d.reasoning_content)

    @property
    def is_preamble(self) -> bool:
        """A chat's first event names the role and brings no token."""
        return (
            self.delta is not None
            and self.delta.role is not None
            and self.finish_reason is None
            and not self.has_text
        )


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class StreamReader:
    """A sink for the answer to one request. `finish` tells what was wrong with it, if anything."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._splitter = EventSplitter()
        self._status = 0
        self._is_done = False
        self._last_stamp_ns = -1
        self._detail = b""

    def on_status(self, status: int) -> None:
        self._status = status

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        if self._status != 200 or self._record.error is not None:
            self._detail = (self._detail + data)[:_MAX_DETAIL_BYTES]
            return
        try:
            events = self._splitter.feed(data)
        except EventTooLargeError:
            self._fail("malformed_event", b"an event without end")
            return
        for event in events:
            if event == b"[DONE]":
                self._is_done = True
            else:
                self._on_event(event, stamp_ns)

    def finish(self) -> None:
        """To be called when the response has ended."""
        record = self._record
        if self._status != 200:
            self._fail(f"http_{self._status}", self._detail)
        elif record.error is None and not self._is_done:
            kind = "truncated" if record.stamps else "not_a_stream"
            self._fail(kind, b"the stream ended without [DONE]")
        elif record.error is None and not record.stamps:
            self._fail("empty", b"the stream had no token")

    def _on_event(self, data: bytes, stamp_ns: int) -> None:
        record = self._record
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail("malformed_event", data)
            return
        if event.error is not None:
            self._fail("error_event", data)
            return
        if event.usage is not None:
            details = event.usage.prompt_tokens_details
            record.usage = Usage(
                event.usage.prompt_tokens,
                event.usage.completion_tokens,
                None if details is None else details.cached_tokens,
            )
        if not event.choices:
            return
        choice = event.choices[0]
        if not record.stamps and choice.is_preamble:
            return
        if stamp_ns == self._last_stamp_ns:
            record.num_coalesced += 1
        self._last_stamp_ns = stamp_ns
        record.stamps.append(stamp_ns)
        record.text_flags.append(choice.has_text)
        if choice.finish_reason is not None:
            record.finish_reason = choice.finish_reason

    def _fail(self, kind: str, detail: bytes) -> None:
        if self._record.error is None:
            self._record.error = kind
            self._record.error_detail = detail[:_MAX_DETAIL_BYTES].decode(errors="replace")
