"""Text from tokens as they come: whole characters, nothing that may yet be withdrawn."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from takt.loading.base import Tokenizer

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Turns the tokens of one choice into text, one delta per token.

    A delta is released as soon as it can never be withdrawn: the bytes of an unfinished UTF-8
    character are held, and so is the longest suffix that could still grow into a stop string.
    Joined deltas, with the tail of `finish`, are the text; a part of UTF-8 that stays broken
    becomes one U+FFFD per maximal part. The text is cut where the earliest stop string begins
    (behind it, with `include_stop_str_in_output`); of several that begin together the shortest
    counts. The text of the first `min_tokens` tokens is no part of a stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[StopString] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = _new_utf8_decoder(errors="replace")
        self._matchers = [_StopMatcher(s) for s in stop]
        self._include_stop = include_stop_str_in_output
        self._skip_special = skip_special_tokens
        self._tokens_before_stops = min_tokens
        self._held = ""
        self._released = 0
        self._stopped: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stopped

    @property
    def num_chars(self) -> int:
        """Characters known so far, held ones included: where the next token's text begins."""
        return self._released + len(self._held)

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text it releases, '' while all of it is held."""
        if self._stopped is not None:
            return ""
        raw = self._tokenizer.token_bytes(token_id)
        if not raw and not self._skip_special:
            raw = self._tokenizer.token_text(token_id).encode()
        text = self._decoder.decode(raw)
        if self._tokens_before_stops > 0:
            self._tokens_before_stops -= 1
            return self._release(text, len(text))
        return self._add(text)

    def finish(self) -> str:
        """Releases what was held; nothing may be pushed afterwards."""
        if self._stopped is not None:
            return ""
        delta = self._add(self._decoder.decode(b"", final=True))
        if self._stopped is None:
            delta += self._release(self._held, len(self._held))
        return delta

    def _add(self, text: str) -> str:
        if not self._matchers:
            self._released += len(text)
            return text
        begin, stop = self._find_stop(text)
        pending = self._held + text
        if stop is None:
            num_held = max(matcher.num_matched for matcher in self._matchers)
            return self._release(pending, len(pending) - num_held)
        self._stopped = stop
        cut = begin + (len(stop) if self._include_stop else 0)
        return self._release(pending[:cut], cut)

    def _find_stop(self, text: str) -> tuple[int, str | None]:
        """Where in held + `text` the earliest stop string begins, and which one it is."""
        best: tuple[int, int, str] | None = None
        for matcher in self._matchers:
            end = matcher.advance(text)
            if end is None:
                continue
            begin = len(self._held) + end - len(matcher.stop)
            if best is None or (begin, len(matcher.stop)) < best[:2]:
                best = (begin, len(matcher.stop), matcher.stop)
        return (0, None) if best is None else (best[0], best[2])

    def _release(self, pending: str, num_chars: int) -> str:
        self._released += num_chars
        self._held = pending[num_chars:]
        return pending[:num_chars]


class StopString:
    """A stop string, prepared once for every choice that looks for it."""

    __slots__ = ("borders", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.borders = _border_lengths(text)


def stop_strings(texts: Iterable[str]) -> tuple[StopString, ...]:
    """For `TextStream`; an empty one can never be met, and is left out."""
    return tuple(StopString(text) for text in texts if text)


class _StopMatcher:
    """Knuth-Morris-Pratt search of one stop string in a text that comes in pieces."""

    __slots__ = ("_borders", "num_matched", "stop")

    def __init__(self, stop: StopString) -> None:
        self.stop = stop.text
        self.num_matched = 0
        """Length of the longest suffix of the text that is a proper prefix of the stop string."""
        self._borders = stop.borders

    def advance(self, text: str) -> int | None:
        """Reads on; the index in `text` behind the first match, or None if there is none."""
        matched, stop, borders = self.num_matched, self.stop, self._borders
        for index, char in enumerate(text):
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            if stop[matched] == char:
                matched += 1
                if matched == len(stop):
                    return index + 1
        self.num_matched = matched
        return None


def _border_lengths(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper border."""
    lengths = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = lengths[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        lengths[index] = length
    return lengths
