"""Which events of a stream are tokens: decided by the server's own count."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takt.bench.record import RequestRecord


class Granularity(enum.Enum):
    TOKEN = "token"
    """One event per token, empty ones included: gaps are between tokens."""
    CHUNK = "chunk"
    """Events carry several tokens, or tokens without text have none: gaps are between chunks."""
    UNKNOWN = "unknown"
    """The server sent no usage; each event is taken for a token."""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """A finished request's stamps, int64 `[num_events]`, and how many tokens they stand for."""

    stamps_ns: npt.NDArray[np.int64]
    num_tokens: int
    granularity: Granularity
    has_surplus: bool
    """More events with text than tokens in the usage: one of the two is wrong."""


def token_times(record: RequestRecord) -> TokenTimes:
    """Reads a record without error: `record.stamps` is not empty.

    A last event that only tells the reason of the end is no token, unless the server's count says
    that it is.
    """
    stamps = np.frombuffer(record.stamps, dtype=np.int64)
    num_events = len(stamps)
    num_texts = sum(record.text_flags)
    ends_bare = record.finish_reason is not None and not record.text_flags[-1] and num_events > 1
    counted = record.usage.num_output_tokens if record.usage is not None else None
    if counted is None:
        kept = stamps[:-1] if ends_bare else stamps
        return TokenTimes(kept, len(kept), Granularity.UNKNOWN, False)
    if counted == num_events:
        return TokenTimes(stamps, counted, Granularity.TOKEN, False)
    if ends_bare and counted == num_events - 1:
        return TokenTimes(stamps[:-1], counted, Granularity.TOKEN, False)
    with_text = stamps[np.frombuffer(record.text_flags, dtype=np.uint8) == 1]
    kept = with_text if len(with_text) else stamps[:1]
    return TokenTimes(kept, counted, Granularity.CHUNK, num_texts > counted)
