"""Where a stream ends, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takt.gateway.execution import Execution
from takt.gateway.stream_end import StreamEnd, event_end


@given(st.lists(st.integers(0, 3), max_size=6), st.data())
def test_end_mark_is_found_however_the_stream_is_cut(kinds: list[int], data: st.DataObject) -> None:
    pieces = (b"data: [DON\n\n", b'data: {"x": "data: [DONE]"}\n\n', b": ping\n\n", b"\n")
    before = b"".join(pieces[kind] for kind in kinds)
    stream = before + b"data: [DONE]\n\n"
    end, passed, at = StreamEnd(), b"", 0
    while at < len(stream):
        size = data.draw(st.integers(1, 9))
        passed += end.feed(stream[at : at + size])
        at += size
    assert (passed, end.held, end.is_done) == (before, b"data: [DONE]\n\n", True)


@given(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 4), st.integers(1, 9))
def test_error_event_is_found_however_the_stream_is_cut(
    kinds: list[int], which: int, size: int
) -> None:
    pieces = (
        b'data: {"error": null}\n\n',
        b'data: {"x": "data: {\\"error"}\n\n',
        b"\n",
        b"data: {",
    )
    errors = (
        b'data: {"error": {"message": "x"}}\n\n',
        b'data:{"error":"x"}\n\n',
        b'error: {"code": 500}\n\n',
        b'data: {"object": "error", "message": "x"}\n\n',
        b'data: {"error" broken}\n\n',
    )
    before = b"".join(pieces[kind] for kind in kinds)
    before += b"\n" if before.endswith(b"{") else b""
    stream = before + errors[which] + b"data: [DONE]\n\n"
    end = StreamEnd()
    passed = b"".join(end.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    assert (passed, end.error, end.is_done) == (before, errors[which], False)


def test_error_event_without_a_line_end_is_found_at_the_end() -> None:
    end = StreamEnd()
    assert end.feed(b'data: 1\n\ndata: {"error": {"message": "x"}}') == b"data: 1\n\n"
    end.end()
    assert end.error == b'data: {"error": {"message": "x"}}\n\n'


@pytest.mark.parametrize(
    ("open_end", "rest"),
    [
        (b"", b""),
        (b"a\n\n", b""),
        (b"a\r\n\r\n", b""),
        (b"a\r\r", b""),
        (b"a\n\r\n", b""),
        (b"a", b"\n\n"),
        (b"a\n", b"\n"),
        (b"a\r\n", b"\r\n"),
        (b"a\r", b"\n\r\n"),
        (b"a\n\r", b"\n"),
        (b"a\r\n\r", b"\n"),
    ],
)
def test_an_open_event_is_ended_in_its_own_way(open_end: bytes, rest: bytes) -> None:
    execution = Execution("")
    for at in range(len(open_end)):
        execution.append(open_end[at : at + 1])
    assert event_end(execution.tail) == event_end(b": before\n\n" + open_end) == rest


@given(st.binary(max_size=60), st.integers(1, 7))
def test_nothing_is_lost_of_a_stream_without_an_end_mark(stream: bytes, size: int) -> None:
    end = StreamEnd()
    passed = b"".join(end.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    assert passed + end.held == stream
