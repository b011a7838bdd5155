"""Which control tokens end a generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>")
"""End of a document: ends a generation wherever the vocabulary has it as a control token."""

_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_turn|>",
    "<turn|>",
)
"""End of a turn: counts if the chat template writes it."""


def stop_token_ids(
    named: Iterable[int], markers: Mapping[str, int], chat_template: str | None
) -> frozenset[int]:
    """Ids that metadata names, ends of text, and ends of turn that the template writes."""
    template = chat_template or ""
    texts = [text for text in _TEXT_ENDS if text in markers]
    turns = [text for text in _TURN_ENDS if text in markers and text in template]
    return frozenset(named) | {markers[text] for text in (*texts, *turns)}
