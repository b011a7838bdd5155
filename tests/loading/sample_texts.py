"""Texts that tokenizers get wrong, and the answers of published tokenizers to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PUBLISHED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "published_tokenizers.json").read_text("utf-8")
)
"""`texts`; for each, what the tokenizer.json published with a model gives: ids (`gemma3`), or the
pieces before merging (`llama-bpe`: Llama 3, `qwen2`: Qwen 2 and 3)."""

TEXTS: list[str] = PUBLISHED["texts"]

TRAINING_TEXTS = [
    *TEXTS,
    "the quick brown fox jumps over the lazy dog and doesn't stop there",
    "in the beginning there was the word and the word was with the people",
    "for item in items:\n    print(item)\n    return 12345\n",
    "hello there, hello world! hello again; the end of the line.",
]
