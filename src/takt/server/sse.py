"""The parts of a response's JSON that stay the same over all its events, encoded once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds the choices of one response."""

    fields: dict[str, Any]
    head: bytes
    """An event up to the first choice."""
    tail: bytes
    """An event behind its choice."""
    has_usage: bool

    @classmethod
    def new(cls, response_id: str, kind: str, model: str, has_usage: bool) -> Envelope:
        fields = {"id": response_id, "object": kind, "created": int(time.time()), "model": model}
        head = b"data: " + msgspec.json.encode(fields)[:-1] + b',"choices":['
        tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"
        return cls(fields, head, tail, has_usage)

    def usage_event(self, usage: dict[str, object]) -> bytes:
        """The event before the last, if the client asked for it."""
        if not self.has_usage:
            return b""
        return self.head + b'],"usage":' + msgspec.json.encode(usage) + b"}\n\n"

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, object]) -> dict[str, Any]:
        return {**self.fields, "choices": choices, "usage": usage}


def event_end(
    logprobs: dict[str, Any] | None,
    finish_reason: str | None,
    stop_reason: str | int | None,
    tail: bytes,
) -> bytes:
    """A choice behind its text, and the event behind the choice."""
    rest = {"logprobs": logprobs, "finish_reason": finish_reason, "stop_reason": stop_reason}
    return b"," + msgspec.json.encode(rest)[1:] + tail
