"""The default models' files: tokenizers and weights as others read them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import tokenizers
from sample_texts import PUBLISHED, TEXTS
from tokenizers import decoders, pre_tokenizers

from takt.loading.base import Checkpoint, Tokenizer
from takt.loading.checkpoint import open_checkpoint
from takt.loading.dequantize import dequantize
from takt.loading.hub import resolve_model
from takt.loading.tokenizer import load_tokenizer

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smollm() -> Iterator[Checkpoint]:
    checkpoint = open_checkpoint(resolve_model("smollm2-135m").path)
    yield checkpoint
    checkpoint.close()


@pytest.fixture(scope="module")
def gemma() -> Iterator[Checkpoint]:
    checkpoint = open_checkpoint(resolve_model("gemma3-270m").path)
    yield checkpoint
    checkpoint.close()


@pytest.fixture(scope="module")
def smollm_tokenizer(smollm: Checkpoint) -> Tokenizer:
    return load_tokenizer(smollm)


@pytest.fixture(scope="module")
def gemma_tokenizer(gemma: Checkpoint) -> Tokenizer:
    return load_tokenizer(gemma)


def random_texts(count: int) -> Iterator[str]:
    """Text that mixes scripts, digits, white space and any character at all."""
    generator = random.Random(count)
    common = [*" \n\tabcdeABC\u00e9\u6f22\u5b57\u304b\ud55c0123456789.,!?'<>|_-", "\r\n", "   ",
              "\u0301", "\u200d", "\U0001f600", "the ", "ing", " of", "don't "]  # fmt: skip
    for _ in range(count):
        yield "".join(
            generator.choice(common)
            if generator.random() < 0.9
            else chr(generator.choice((generator.randrange(1, 0xD800),
                                       generator.randrange(0xE000, 0x110000))))
            for _ in range(generator.randrange(40))
        )  # fmt: skip


def test_smollm_ids_equal_those_of_its_published_pipeline(
    smollm: Checkpoint, smollm_tokenizer: Tokenizer
) -> None:
    """Digits alone, then GPT-2's split, as its tokenizer.json has it; made without our code."""
    tokens = smollm.metadata["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ")) for line in smollm.metadata["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    reference = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(tokens[:17])
    for text in [*TEXTS, *random_texts(500)]:
        ids = smollm_tokenizer.encode(text, parse_special=True, add_bos=True)
        assert ids == reference.encode(text).ids


@pytest.mark.oracle
def test_smollm_ids_equal_those_of_transformers(smollm_tokenizer: Tokenizer) -> None:
    """On texts without digits: from a GGUF file transformers does not split those alone."""
    from transformers import AutoTokenizer

    path = resolve_model("smollm2-135m").path
    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        if not any(character.isnumeric() for character in text):
            ids = smollm_tokenizer.encode(text, parse_special=True, add_bos=True)
            assert ids == reference(text).input_ids


def test_smollm_says_what_its_file_says(smollm_tokenizer: Tokenizer) -> None:
    assert smollm_tokenizer.vocab_size == 49152
    assert smollm_tokenizer.bos_token_id == 1
    assert not smollm_tokenizer.adds_bos
    assert smollm_tokenizer.eos_token_id == 2
    assert smollm_tokenizer.eos_token_ids == {0, 2}
    assert smollm_tokenizer.special_token_ids == set(range(17))
    assert "<|im_start|>" in (smollm_tokenizer.chat_template or "")


def test_smollm_gives_any_text_back(smollm_tokenizer: Tokenizer) -> None:
    """All but bytes its vocabulary has no token for: six control characters, planes 4 to 11."""
    known = {smollm_tokenizer.token_bytes(i) for i in range(smollm_tokenizer.vocab_size)}
    missing = {byte for byte in range(256) if bytes([byte]) not in known}
    assert missing == {
        0x04,
        0x06,
        0x13,
        0x14,
        0x16,
        0x1D,
        0xC0,
        0xC1,
        0xF1,
        0xF2,
        *range(0xF5, 256),
    }
    for text in [*TEXTS, *random_texts(500)]:
        ids = smollm_tokenizer.encode(text, parse_special=False, add_bos=False)
        spelt = b"".join(map(smollm_tokenizer.token_bytes, ids))
        assert spelt == bytes(byte for byte in text.encode() if byte not in missing)
        assert not smollm_tokenizer.special_token_ids & set(ids)


@pytest.mark.parametrize("index", range(len(TEXTS)))
def test_gemma_ids_equal_those_of_its_published_tokenizer(
    gemma_tokenizer: Tokenizer, index: int
) -> None:
    ids = gemma_tokenizer.encode(TEXTS[index], parse_special=True, add_bos=True)
    assert ids == [2, *PUBLISHED["gemma3"][index]][TEXTS[index].startswith("<bos>") :]


def test_gemma_says_what_its_file_says(gemma_tokenizer: Tokenizer) -> None:
    assert gemma_tokenizer.vocab_size == 262144
    assert gemma_tokenizer.bos_token_id == 2
    assert gemma_tokenizer.adds_bos
    assert gemma_tokenizer.eos_token_ids == {1}
    assert gemma_tokenizer.chat_template is None
    assert gemma_tokenizer.special_tokens()["<end_of_turn>"] == 106


def test_gemma_gives_any_text_back(gemma_tokenizer: Tokenizer) -> None:
    for text in random_texts(500):
        ids = gemma_tokenizer.encode(text, parse_special=False, add_bos=True)
        assert b"".join(map(gemma_tokenizer.token_bytes, ids)).decode() == text
        assert gemma_tokenizer.decode(ids, skip_special_tokens=True) == text


def test_no_marker_of_a_model_can_be_written_as_text(
    smollm_tokenizer: Tokenizer, gemma_tokenizer: Tokenizer
) -> None:
    for tokenizer in (smollm_tokenizer, gemma_tokenizer):
        for marker, token_id in list(tokenizer.special_tokens().items())[:300]:
            text = f"a{marker}\n{marker}"
            plain = tokenizer.encode(text, parse_special=False, add_bos=False)
            assert token_id not in plain
            assert tokenizer.decode(plain, skip_special_tokens=True) == text


@pytest.mark.oracle
def test_weights_equal_those_of_the_reference_reader(smollm: Checkpoint) -> None:
    import gguf

    reader = gguf.GGUFReader(smollm.path)
    assert {tensor.name for tensor in reader.tensors} == set(smollm.tensors)
    seen = set()
    for tensor in reader.tensors:
        info = smollm.tensors[tensor.name]
        assert info.type.name == tensor.tensor_type.name
        assert info.shape == tuple(int(extent) for extent in reversed(tensor.shape))
        whole = smollm.read(tensor.name)
        assert whole.raw.tobytes() == tensor.data.tobytes()
        if info.type not in seen:
            seen.add(info.type)
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(dequantize(whole), expected.reshape(info.shape))
    assert len(seen) == 3
