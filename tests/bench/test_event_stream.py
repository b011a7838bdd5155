from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takt.bench.event_stream import EventSplitter, EventTooLargeError

STREAM = (
    b": comment\n\ndata: one\n\ndata:two\n\nevent: x\ndata: three\r\nid: 1\r\n\r\n"
    b"data: a\ndata: b\n\nretry: 5\n\ndata: [DONE]\n\n"
)
EVENTS = [b"one", b"two", b"three", b"a\nb", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    splitter = EventSplitter()
    borders = [0, *sorted(cuts), len(STREAM)]
    found = [
        event
        for begin, end in itertools.pairwise(borders)
        for event in splitter.feed(STREAM[begin:end])
    ]
    assert found == EVENTS
    assert not splitter.has_rest


def test_an_unfinished_event_is_a_rest() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: one\n\ndata: tw") == [b"one"]
    assert splitter.has_rest


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takt.bench.event_stream.MAX_EVENT_BYTES", 100)
    splitter = EventSplitter()
    with pytest.raises(EventTooLargeError):
        for _ in range(20):
            splitter.feed(b"data: 12345")
