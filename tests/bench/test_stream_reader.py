from __future__ import annotations

import pytest

from takt.bench.record import RequestRecord
from takt.bench.stream_reader import StreamReader

TEXT = b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n'
EMPTY = b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"x","finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes, status: int = 200) -> RequestRecord:
    """Piece i comes at time i."""
    record = RequestRecord(0, 7, 3)
    reader = StreamReader(record)
    reader.on_status(status)
    for stamp, piece in enumerate(pieces):
        reader.on_body(piece, stamp)
    reader.finish()
    return record


def test_every_event_with_a_choice_gets_the_stamp_of_its_read() -> None:
    record = read(TEXT, EMPTY, LAST, USAGE, DONE)
    assert record.error is None
    assert list(record.stamps) == [0, 1, 2]
    assert list(record.text_flags) == [1, 0, 1]
    assert record.finish_reason == "length"
    assert record.usage is not None
    assert record.usage.num_prompt_tokens == 7
    assert record.usage.num_output_tokens == 3
    assert record.usage.num_cached_tokens == 2
    assert record.num_coalesced == 0


def test_an_event_over_two_reads_has_the_stamp_of_the_second() -> None:
    record = read(TEXT[:20], TEXT[20:] + LAST + DONE)
    assert list(record.stamps) == [1, 1]
    assert record.num_coalesced == 1


def test_the_role_of_a_chat_is_no_token_and_reasoning_is() -> None:
    record = read(
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n',
        DONE,
    )
    assert list(record.stamps) == [1, 2]
    assert list(record.text_flags) == [1, 1]


def test_usage_beside_choices_is_read() -> None:
    record = read(TEXT[:-3] + b',"usage":{"completion_tokens":1}}\n\n', DONE)
    assert record.usage is not None
    assert record.usage.num_output_tokens == 1
    assert len(record.stamps) == 1


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ((TEXT, b"data: {nonsense\n\n", DONE), "malformed_event"),
        ((TEXT, b'data: {"choices":3}\n\n', DONE), "malformed_event"),
        ((TEXT, b'data: {"error":{"message":"engine died"}}\n\n', DONE), "error_event"),
        ((TEXT, LAST), "truncated"),
        ((TEXT, DONE[:5]), "truncated"),
        ((b'{"choices":[{"text":"all at once"}]}',), "not_a_stream"),
        ((USAGE, DONE), "empty"),
    ],
)
def test_a_broken_stream_has_a_kind(pieces: tuple[bytes, ...], kind: str) -> None:
    assert read(*pieces).error == kind


def test_a_status_is_a_kind_and_the_body_its_detail() -> None:
    record = read(b'{"error":', b'"queue is full"}', status=429)
    assert record.error == "http_429"
    assert record.error_detail == '{"error":"queue is full"}'
    assert not record.stamps


def test_what_follows_an_error_counts_no_more() -> None:
    record = read(TEXT, b'data: {"error":"died"}\n\n', TEXT, DONE)
    assert record.error == "error_event"
    assert len(record.stamps) == 1
