"""takt.engine.text: what a stream may release, and what it must hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_fakes import BOS, ByteTokenizer

from takt.engine.text import TextStream, stop_strings


class PieceTokenizer(ByteTokenizer):
    """Tokens are the given pieces of bytes; the last id is a control token."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def token_text(self, token_id: int) -> str:
        return "<end>"


def stream_pieces(pieces: list[bytes], stop: tuple[str, ...] = (), **options: bool):
    stream = TextStream(PieceTokenizer(pieces), stop_strings(stop), **options)
    deltas = [stream.push(i) for i in range(len(pieces))]
    return [*deltas, stream.finish()], stream


def reference_text(text: str, stops: tuple[str, ...]) -> str:
    """The text up to the first character at which any stop string has ended, cut."""
    for end in range(1, len(text) + 1):
        begins = [end - len(s) for s in stops if text[:end].endswith(s)]
        if begins:
            return text[: min(begins)]
    return text


raw_pieces = st.lists(st.binary(max_size=5), max_size=12)
texts = st.text(alphabet="abcé€😀", max_size=20)
stop_lists = st.lists(st.text(alphabet="abcé€", min_size=1, max_size=4), max_size=3).map(tuple)


def test_character_over_several_tokens_is_held_until_whole() -> None:
    deltas, _ = stream_pieces([b"\xf0", b"\x9f", b"\x98", b"\x80", b"!"])
    assert deltas == ["", "", "", "😀", "!", ""]


def test_each_maximal_broken_part_becomes_one_mark() -> None:
    deltas, _ = stream_pieces([b"\xf0\x9f", b"\x98", b"a", b"\xe2\x82"])
    assert deltas == ["", "", "\ufffda", "", "\ufffd"]


@given(raw_pieces)
def test_joined_deltas_equal_the_whole_text(pieces: list[bytes]) -> None:
    deltas, _ = stream_pieces(pieces)
    assert "".join(deltas) == b"".join(pieces).decode(errors="replace")


@given(texts, st.data())
def test_no_delta_of_valid_text_holds_a_replacement_mark(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    deltas, _ = stream_pieces(pieces)
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


@given(texts, stop_lists)
def test_text_is_cut_where_the_earliest_stop_begins(text: str, stops: tuple[str, ...]) -> None:
    deltas, stream = stream_pieces([c.encode() for c in text], stops)
    assert "".join(deltas) == reference_text(text, stops)
    assert (stream.stopped is not None) == any(s in text for s in stops)


@given(texts, stop_lists)
def test_no_more_is_held_than_could_become_a_stop(text: str, stops: tuple[str, ...]) -> None:
    stream = TextStream(PieceTokenizer([c.encode() for c in text]), stop_strings(stops))
    released = ""
    for i in range(len(text)):
        released += stream.push(i)
        if stream.stopped is not None:
            return
        seen = text[: i + 1]
        suffixes = [
            k for s in stops for k in range(1, min(len(s), len(seen) + 1)) if seen.endswith(s[:k])
        ]
        assert released == seen[: len(seen) - max(suffixes, default=0)]
        assert stream.num_chars == len(seen)


@given(st.lists(texts, max_size=6), stop_lists)
def test_streamed_text_never_shows_a_character_of_a_stop(
    parts: list[str], stops: tuple[str, ...]
) -> None:
    deltas, stream = stream_pieces([p.encode() for p in parts], stops)
    text = "".join(deltas)
    assert "".join(parts).startswith(text)
    if stream.stopped is None:
        assert text == "".join(parts)
    else:
        assert "".join(parts)[len(text) :].startswith(stream.stopped)
    assert not any(s in text for s in stops)


def test_stop_over_two_tokens_never_leaks() -> None:
    deltas, stream = stream_pieces([b"one ST", b"OP two", b"!"], ("STOP",))
    assert deltas == ["one ", "", "", ""]
    assert stream.stopped == "STOP"


def test_false_alarm_is_released_at_the_end() -> None:
    deltas, stream = stream_pieces([b"one ST"], ("STOP",))
    assert deltas == ["one ", "ST"]
    assert stream.stopped is None


def test_stop_string_is_kept_on_request() -> None:
    deltas, _ = stream_pieces([b"a ST", b"OP b"], ("STOP",), include_stop_str_in_output=True)
    assert "".join(deltas) == "a STOP"


def test_of_stops_that_begin_together_the_shortest_counts() -> None:
    _, stream = stream_pieces([b"xab"], ("ab", "a"))
    assert stream.stopped == "a"


def test_broken_end_can_complete_a_stop() -> None:
    deltas, stream = stream_pieces([b"a\xe2\x82"], ("\ufffd",))
    assert deltas == ["a", ""]
    assert stream.stopped == "\ufffd"


def test_text_of_the_first_min_tokens_is_no_stop() -> None:
    stream = TextStream(PieceTokenizer([b"x", b"x", b"y", b"x"]), stop_strings(["x"]), min_tokens=2)
    assert [stream.push(i) for i in range(4)] == ["x", "x", "y", ""]
    assert stream.stopped == "x"


@pytest.mark.parametrize(("skip", "text"), [(True, "a"), (False, "a<bos>")])
def test_control_tokens_show_only_on_request(skip: bool, text: str) -> None:
    stream = TextStream(ByteTokenizer(), skip_special_tokens=skip)
    assert stream.push(ord("a")) + stream.push(BOS) + stream.finish() == text
