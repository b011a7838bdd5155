"""Records of requests that never ran, for tests of what is made of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from takt.bench.record import RequestRecord, Usage

MS = 1_000_000


def make_record(
    stamps_ms: Sequence[float],
    *,
    texts: Sequence[bool] | None = None,
    num_output: int | None = -1,
    num_prompt: int | None = 10,
    cached: int | None = None,
    finish_reason: str | None = "length",
    max_tokens: int | None = None,
    error: str | None = None,
    planned_ms: float = 1000.0,
) -> RequestRecord:
    """`stamps_ms` are after the planned time. `num_output` None is an answer without usage, -1 one
    that counts each event."""
    stamps = array("q", [int((planned_ms + t) * MS) for t in stamps_ms])
    counted = len(stamps) if num_output == -1 else num_output
    return RequestRecord(
        index=0,
        num_prompt_tokens=10,
        max_tokens=len(stamps) if max_tokens is None else max_tokens,
        planned_ns=int(planned_ms * MS),
        sent_ns=int(planned_ms * MS) + 1000,
        end_ns=int((planned_ms + max(stamps_ms, default=0)) * MS) + 1000,
        stamps=stamps,
        text_flags=bytearray([True] * len(stamps) if texts is None else texts),
        finish_reason=finish_reason,
        usage=None if counted is None else Usage(num_prompt, counted, cached),
        error=error,
        error_detail="detail" if error else "",
    )
