"""What one request's client saw."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Usage:
    """What the server says it counted; None is a field that it does not send."""

    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None


@dataclass(slots=True)
class RequestRecord:
    """Times are monotonic nanoseconds of this process."""

    index: int
    num_prompt_tokens: int
    """Asked for; exact if the prompt was made with the server's tokenizer."""
    max_tokens: int
    is_long: bool = False
    planned_ns: int = 0
    """When it should be sent: TTFT counts from here, so that a late client cannot flatter."""
    sent_ns: int = 0
    end_ns: int = 0
    stamps: array[int] = field(default_factory=lambda: array("q"))
    """One per event that carries a choice."""
    text_flags: bytearray = field(default_factory=bytearray)
    """1 for each of these events that carries text."""
    num_coalesced: int = 0
    """Events that came in the same socket read as the one before."""
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    """Kind of the failure; None if the request succeeded."""
    error_detail: str = ""

    @property
    def is_ok(self) -> bool:
        return self.error is None
