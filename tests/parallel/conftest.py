"""Tiny models whose sizes 2 and 4 divide, written once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.utils import logging

import tiny_models

SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
}
GEMMA = {"num_key_value_heads": 1, "num_hidden_layers": 6}
"""Fewer KV heads than ranks: copies of them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-matrix",
        action="store_true",
        help="every combination of sizes in tests/parallel, not a covering subset",
    )


@pytest.fixture(scope="session")
def divisible(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`divisible(name)` is a Hugging Face directory, `divisible(name, "Q8_0")` a GGUF file."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("divisible")

    @cache
    def make(name: str, quant_type: str | None = None) -> Path:
        sizes = SIZES | (GEMMA if name == "gemma3" else {})
        model = tiny_models.make_model(name, **sizes)
        if quant_type is None:
            model.save_pretrained(home / name)
            _byte_tokenizer().save(str(home / name / "tokenizer.json"))
            return home / name
        path = home / f"{name}.{quant_type}.gguf"
        tiny_models.write_gguf(model, path, quant_type)
        return path

    return make


def _byte_tokenizer() -> Tokenizer:
    """A token for each byte, no others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet), show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(["a"], trainer)
    return tokenizer
