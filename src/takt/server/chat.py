"""From messages to token ids: the chat template, and text that cannot forge a role."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from takt.errors import InvalidRequestError
from takt.loading.base import Tokenizer
from takt.server.chat_messages import read_messages
from takt.server.chat_template import ChatTemplate

_GUARDS = (0xF0000, 0xFFFFE)
"""Private-use code points, of which one that no message holds becomes the guard."""

_RESERVED = ("messages", "add_generation_prompt", "bos_token", "eos_token")


class ChatRenderer:
    """Renders and tokenises chats of one model; safe to call from several threads.

    A message may hold the text of a control token, such as `<|im_end|>`. Before the template runs,
    each such marker gets a guard character behind its first character, so that it is no marker any
    more. Afterwards the markers that are left are the template's own; the text between them is
    tokenised as plain text, without the guards.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        markers = tokenizer.special_tokens()
        self._special = _any_of(markers)
        control = [m for m, i in markers.items() if i in tokenizer.special_token_ids]
        self._control = _any_of(control)
        self._variables = {
            "bos_token": self._token_text(tokenizer.bos_token_id),
            "eos_token": self._token_text(tokenizer.eos_token_id),
            "tools": None,
            "documents": None,
        }

    def encode(
        self,
        messages: Sequence[Any],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat, with the begin token once if the model has one.

        Raises `InvalidRequestError` for messages that cannot be rendered, and if the model has no
        template. Blocks for as long as rendering and tokenising take.
        """
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template: use /v1/completions, or start the server with "
                "--chat-template",
                param="messages",
            )
        checked = read_messages(messages)
        kwargs = _check_kwargs(template_kwargs or {})
        guard = _unused_character(checked, kwargs)
        guarded = self._guard(checked, guard)
        text = self._template.render(
            {
                **self._variables,
                **self._guard(kwargs, guard),
                "messages": guarded,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        _check_system_messages(guarded, text)
        if continue_final_message:
            text = _cut_after_final_message(text, guarded, add_generation_prompt)
        return self._tokenise(text, guard)

    def _tokenise(self, text: str, guard: str) -> list[int]:
        if guard not in text:
            return self._tokenizer.encode(text, parse_special=True, add_bos=True)
        markers = self._tokenizer.special_tokens()
        token_ids: list[int] = []
        position = 0
        for match in self._special.finditer(text):
            token_ids += self._plain(text[position : match.start()], guard)
            token_ids.append(markers[match.group()])
            position = match.end()
        token_ids += self._plain(text[position:], guard)
        bos = self._tokenizer.bos_token_id
        if self._tokenizer.adds_bos and bos is not None and token_ids[:1] != [bos]:
            token_ids.insert(0, bos)
        return token_ids

    def _plain(self, text: str, guard: str) -> list[int]:
        if not text:
            return []
        plain = text.replace(guard, "")
        return self._tokenizer.encode(plain, parse_special=False, add_bos=False)

    def _guard(self, value: Any, guard: str) -> Any:
        if isinstance(value, str):
            return self._control.sub(lambda m: m.group()[0] + guard + m.group()[1:], value)
        if isinstance(value, dict):
            return {key: self._guard(item, guard) for key, item in value.items()}
        if isinstance(value, list):
            return [self._guard(item, guard) for item in value]
        return value

    def _token_text(self, token_id: int | None) -> str:
        return "" if token_id is None else self._tokenizer.token_text(token_id)


def _any_of(markers: Iterable[str]) -> re.Pattern[str]:
    """Matches any marker, the longest first; nothing if there is none."""
    longest_first = sorted((m for m in markers if m), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) if longest_first else r"(?!)")


def _check_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    for name in kwargs:
        if name in _RESERVED:
            raise InvalidRequestError(
                f"chat_template_kwargs: {name} is set by the server", param="chat_template_kwargs"
            )
        if not name.isidentifier():
            raise InvalidRequestError(
                f"chat_template_kwargs: {name[:64]!r} is not a name", param="chat_template_kwargs"
            )
    return dict(kwargs)


def _unused_character(*values: Any) -> str:
    first = chr(_GUARDS[0])
    if not any(first in text for text in _strings(values)):
        return first
    used = set().union(*(set(text) for text in _strings(values)))
    for code in range(*_GUARDS):
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequestError("the messages hold every private-use character", param="messages")


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _check_system_messages(messages: Sequence[Mapping[str, str]], text: str) -> None:
    """Many templates pass over a system message they did not expect; the client must know."""
    for index, message in enumerate(messages):
        if message["role"] == "system" and message["content"].strip() not in text:
            raise InvalidRequestError(
                f"messages[{index}]: the model's chat template has no place for this system "
                "message; put its text into a user message",
                param=f"messages[{index}]",
            )


def _cut_after_final_message(
    text: str, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
) -> str:
    if add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message needs add_generation_prompt to be false",
            param="continue_final_message",
        )
    content = messages[-1]["content"].rstrip()
    begin = text.rfind(content) if content else -1
    if begin < 0:
        raise InvalidRequestError(
            "continue_final_message: the final message's content is empty, or its template "
            "changes it",
            param="continue_final_message",
        )
    return text[: begin + len(content)]
