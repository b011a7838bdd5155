"""SentencePiece vocabularies from GGUF metadata, against the library that trains them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from gguf_models import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    read_tokenizer,
    write_tokenizer,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_texts import TEXTS, TRAINING_TEXTS

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.checkpoint import open_checkpoint
from takt.loading.merges import derive_merges
from takt.loading.tokenizer import load_tokenizer

SPACE = "\u2581"
WRITTEN_SPACE = st.text(max_size=60).map(lambda text: text.replace(SPACE, "").replace("\0", ""))


def trained(**options: Any) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe", "vocab_size": 700, "byte_fallback": True,
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "add_dummy_prefix": True, "character_coverage": 0.98, "minloglevel": 2,
        "hard_vocab_limit": False, "control_symbols": ["<turn>"], "num_threads": 1,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING_TEXTS), model_writer=model, **(settings | options)
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def gguf_fields(processor: sentencepiece.SentencePieceProcessor, **changes: Any) -> dict[str, Any]:
    ids = range(processor.get_piece_size())

    def kind(index: int) -> int:
        if processor.is_unknown(index):
            return UNKNOWN
        if processor.is_control(index):
            return CONTROL
        return BYTE if processor.is_byte(index) else NORMAL

    fields = {
        "model": "llama", "pre": "default",
        "tokens": [processor.id_to_piece(index) for index in ids],
        "scores": [processor.get_score(index) for index in ids],
        "token_type": [kind(index) for index in ids],
        "bos_token_id": processor.bos_id(),
        "eos_token_id": processor.eos_id(),
        "unknown_token_id": processor.unk_id(),
    }  # fmt: skip
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture(scope="module")
def processor() -> sentencepiece.SentencePieceProcessor:
    return trained()


@pytest.fixture(scope="module")
def tokenizer(processor: sentencepiece.SentencePieceProcessor, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAKT_CACHE", str(folder / "cache"))
        yield read_tokenizer(folder / "m.gguf", gguf_fields(processor))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_trainers(
    tokenizer: Any, processor: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    ids = tokenizer.encode(text, parse_special=False, add_bos=False)
    assert ids == processor.encode(text)


@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(WRITTEN_SPACE)
def test_ids_equal_the_trainers_on_any_text(
    tokenizer: Any, processor: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    ids = tokenizer.encode(text, parse_special=False, add_bos=True)
    assert ids == [processor.bos_id(), *processor.encode(text)]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_without_a_space_prefix(tmp_path: Path, cache: Path) -> None:
    processor = trained(add_dummy_prefix=False)
    fields = gguf_fields(processor, add_space_prefix=False)
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields)
    for text in TEXTS:
        ids = tokenizer.encode(text, parse_special=False, add_bos=False)
        assert ids == processor.encode(text)
        spelt = b"".join(map(tokenizer.token_bytes, ids))
        assert spelt.decode() == text.replace(SPACE, " ")


def test_bytes_of_a_continuation_keep_their_leading_space(tokenizer: Any) -> None:
    ids = tokenizer.encode("the fox", parse_special=False, add_bos=True)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the fox"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>the fox"
    assert tokenizer.decode(ids[1:], skip_special_tokens=True) == " the fox"
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" the fox"


def test_bytes_written_out_in_a_text_are_not_bytes(tokenizer: Any) -> None:
    ids = tokenizer.encode("<0x41>", parse_special=True, add_bos=True)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<0x41>"


def test_markers_cannot_be_merged_from_plain_text(tmp_path: Path, cache: Path) -> None:
    """Every part of a marker is a piece here, down to the last merge but one."""
    tokens = ["<unk>", "<s>", "</s>", *"<s>/", "<s", "</", "s>", "</s", SPACE]
    types = [UNKNOWN, CONTROL, CONTROL] + [NORMAL] * (len(tokens) - 3)
    fields = {
        "model": "llama", "tokens": tokens, "token_type": types,
        "scores": [float(-index) for index in range(len(tokens))],
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_space_prefix": False,
    }  # fmt: skip
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields)
    plain = tokenizer.encode("<s></s>", parse_special=False, add_bos=False)
    assert not tokenizer.special_token_ids & set(plain)
    assert tokenizer.decode(plain, skip_special_tokens=True) == "<s></s>"
    assert tokenizer.encode("<s></s>", parse_special=True, add_bos=True) == [1, 2]


def test_runs_of_spaces_given_as_such_are_found(tmp_path: Path, cache: Path) -> None:
    tokens = ["<unk>", "<s>", SPACE, "x", "  ", "   ", "\n", "\n\n"]
    types = [UNKNOWN, CONTROL, NORMAL, NORMAL] + [USER_DEFINED] * 4
    scores = [-1000.0, -1000.0, -1.0, -2.0] + [-1000.0] * 4
    fields = {
        "model": "llama", "tokens": tokens, "token_type": types, "scores": scores,
        "bos_token_id": 1, "unknown_token_id": 0, "add_space_prefix": False,
        "add_bos_token": False,
    }  # fmt: skip
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields)
    ids = tokenizer.encode("x   x\n\n\nx  ", parse_special=False, add_bos=True)
    assert ids == [3, 5, 3, 7, 6, 3, 4]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "x   x\n\n\nx  "


def test_merges_are_kept_and_a_spoilt_cache_is_derived_again(
    processor: sentencepiece.SentencePieceProcessor, tmp_path: Path, cache: Path
) -> None:
    path = write_tokenizer(tmp_path / "m.gguf", gguf_fields(processor))

    def ids() -> list[int]:
        tokenizer = load_tokenizer(open_checkpoint(path))
        return tokenizer.encode(TRAINING_TEXTS[-1], parse_special=False, add_bos=False)

    expected = ids()
    (kept,) = (cache / "tokenizers").iterdir()
    whole = kept.read_bytes()
    for spoilt in (b"", whole[:50], whole[:-3], b"junk" * 100):
        kept.write_bytes(spoilt)
        assert ids() == expected
    np.save(kept, np.array([[0, 10**6]], dtype=np.int32))
    assert ids() == expected
    # What is kept is what is used: an empty list merges nothing.
    np.save(kept, np.zeros((0, 2), dtype=np.int32))
    assert len(ids()) > len(expected)


def test_a_cache_that_cannot_be_written_is_no_error(
    processor: sentencepiece.SentencePieceProcessor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path / "file" / "cache"))
    tokenizer = read_tokenizer(tmp_path / "m.gguf", gguf_fields(processor))
    assert tokenizer.encode("the", parse_special=False, add_bos=False) == processor.encode("the")


def test_merges_are_ordered_by_score_then_by_the_longest_left_part() -> None:
    ids = {"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}
    ranks = {"ab": -2.0, "ba": -1.0, "aba": -3.0}
    assert derive_merges(ranks, ids).tolist() == [[1, 0], [0, 1], [2, 0], [0, 4]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": None}, r"tokenizer\.ggml\.scores: is missing"),
        ({"scores": [1.0]}, r"tokenizer\.ggml\.scores.*1 entries"),
        ({"unknown_token_id": 10**6}, r"tokenizer\.ggml\.unknown_token_id"),
        ({"add_space_prefix": "yes"}, r"tokenizer\.ggml\.add_space_prefix.*boolean"),
        ({"bos_token_id": None, "add_bos_token": True}, r"tokenizer\.ggml\.bos_token_id"),
    ],
)
def test_broken_metadata_is_refused_by_field(
    processor: sentencepiece.SentencePieceProcessor,
    tmp_path: Path,
    cache: Path,
    changes: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf: {words}"):
        read_tokenizer(tmp_path / "m.gguf", gguf_fields(processor, **changes))


def test_scores_that_are_no_numbers_are_refused(
    processor: sentencepiece.SentencePieceProcessor, tmp_path: Path, cache: Path
) -> None:
    fields = gguf_fields(processor)
    fields["scores"][5] = float("nan")
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.scores: holds NaN"):
        read_tokenizer(tmp_path / "m.gguf", fields)


def test_white_space_rewriting_is_refused(
    processor: sentencepiece.SentencePieceProcessor, tmp_path: Path, cache: Path
) -> None:
    fields = gguf_fields(processor, remove_extra_whitespaces=True)
    with pytest.raises(UnsupportedModelError, match="remove_extra_whitespaces"):
        read_tokenizer(tmp_path / "m.gguf", fields)
