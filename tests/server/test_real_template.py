"""The template of a real model renders as `transformers` renders it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from takt.loading.checkpoint import open_checkpoint
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_tokenizer
from takt.server.chat import ChatRenderer
from takt.server.chat_template import ChatTemplate

pytestmark = [pytest.mark.model, pytest.mark.oracle]

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  hi \n"}],
    [
        {"role": "user", "content": "é 😀 {{ x }}"},
        {"role": "assistant", "content": "1 < 2 & 3"},
        {"role": "user", "content": ""},
    ],
]


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_tokens_are_those_of_the_text_that_transformers_renders(
    add_generation_prompt: bool,
) -> None:
    chat_template_utils: Any = pytest.importorskip("transformers.utils.chat_template_utils")
    checkpoint = open_checkpoint(Path(resolve_model("smollm2-135m").path))
    tokenizer = load_tokenizer(checkpoint)
    checkpoint.close()
    source = tokenizer.chat_template
    assert source is not None
    renderer = ChatRenderer(tokenizer, ChatTemplate(source, "smollm2-135m"))
    texts, _ = chat_template_utils.render_jinja_template(
        CHATS, chat_template=source, add_generation_prompt=add_generation_prompt
    )
    for messages, text in zip(CHATS, texts, strict=True):
        ids = renderer.encode(messages, add_generation_prompt=add_generation_prompt)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert ids == tokenizer.encode(text, parse_special=True, add_bos=False)
