"""Tokenizers of Hugging Face directories: tokenizer.json and what lies beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from sample_texts import TEXTS, TRAINING_TEXTS
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from takt.errors import InvalidRequestError, ModelError, UnsupportedModelError
from takt.loading.base import Tokenizer
from takt.loading.checkpoint import open_checkpoint
from takt.loading.tokenizer import load_tokenizer


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        show_progress=False,
        special_tokens=["<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TRAINING_TEXTS, trainer)
    # Past the model's own vocabulary, in this order, flags included.
    tokenizer.add_special_tokens(["<|begin|>"])
    tokenizer.add_tokens(["<tool>", AddedToken("<|turn|>", special=False, normalized=False)])
    tokenizer.add_special_tokens(["<|eot_id|>"])
    return tokenizer


def with_begin_token(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    return tokenizer


def directory(path: Path, tokenizer: tokenizers.Tokenizer | None, **files: Any) -> Path:
    """`files` are JSON objects by stem, or text by name with its dot written `__`."""
    (path / "model.safetensors").write_bytes(safetensors.numpy.save({"w": np.zeros(1, np.float32)}))
    for stem, content in ({"config": {}} | files).items():
        if isinstance(content, str):
            (path / stem.replace("__", ".")).write_text(content)
        else:
            (path / f"{stem}.json").write_text(json.dumps(content))
    if tokenizer is not None:
        tokenizer.save(str(path / "tokenizer.json"))
    return path


def loaded(path: Path, override: str | None = None) -> Tokenizer:
    return load_tokenizer(open_checkpoint(path), override)


def test_ids_equal_the_librarys_and_text_comes_back(tmp_path: Path) -> None:
    reference = byte_level()
    tokenizer = loaded(directory(tmp_path, reference))
    for text in [*TEXTS, "a<tool>b<|eot_id|><|turn|> c"]:
        ids = tokenizer.encode(text, parse_special=True, add_bos=False)
        assert ids == reference.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.vocab_size == reference.get_vocab_size()


def test_truncation_and_padding_of_the_file_do_not_apply(tmp_path: Path) -> None:
    reference = byte_level()
    reference.enable_truncation(4)
    reference.enable_padding(length=64)
    tokenizer = loaded(directory(tmp_path, reference))
    text = TRAINING_TEXTS[-1]
    ids = tokenizer.encode(text, parse_special=True, add_bos=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_markers_are_plain_text_in_messages(tmp_path: Path) -> None:
    tokenizer = loaded(directory(tmp_path, byte_level()))
    markers = tokenizer.special_tokens()
    assert set(markers) == {"<|end_of_text|>", "<|begin|>", "<|turn|>", "<|eot_id|>"}
    for text, token_id in markers.items():
        assert tokenizer.encode(text, parse_special=True, add_bos=False) == [token_id]
        plain = tokenizer.encode(text, parse_special=False, add_bos=False)
        assert token_id not in plain
        assert tokenizer.decode(plain, skip_special_tokens=True) == text
    for special in (False, True):
        ids = tokenizer.encode("a<tool>", parse_special=special, add_bos=False)
        assert tokenizer.token_text(ids[-1]) == "<tool>"


def test_a_marker_that_merges_could_spell_is_refused_in_plain_text(tmp_path: Path) -> None:
    vocab = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}
    reference = tokenizers.Tokenizer(models.BPE(vocab, [("<", "s"), ("<s", ">")]))
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(["<s>"])
    tokenizer = loaded(directory(tmp_path, reference))
    assert tokenizer.encode("<s>", parse_special=True, add_bos=False) == [4]
    assert tokenizer.encode("<ss>", parse_special=False, add_bos=False) == [3, 1, 2]
    with pytest.raises(InvalidRequestError, match="<s>"):
        tokenizer.encode("s<s>", parse_special=False, add_bos=False)


@pytest.mark.parametrize(
    ("post_processed", "settings", "adds_bos", "bos"),
    [
        (False, {}, False, None),
        (True, {}, True, "<|begin|>"),
        (False, {"bos_token": "<|begin|>"}, False, "<|begin|>"),
        (False, {"bos_token": {"content": "<|begin|>"}, "add_bos_token": True}, True, "<|begin|>"),
        (True, {"bos_token": "<|begin|>", "add_bos_token": False}, False, "<|begin|>"),
        (False, {"bos_token": None, "add_bos_token": True}, False, None),
    ],
)
def test_the_begin_token(
    tmp_path: Path, post_processed: bool, settings: Any, adds_bos: bool, bos: str | None
) -> None:
    reference = byte_level()
    if post_processed:
        with_begin_token(reference)
    tokenizer = loaded(directory(tmp_path, reference, tokenizer_config=settings))
    bos_id = None if bos is None else reference.token_to_id(bos)
    assert (tokenizer.adds_bos, tokenizer.bos_token_id) == (adds_bos, bos_id)
    ids = tokenizer.encode("<|begin|>hi", parse_special=True, add_bos=True)
    assert ids.count(reference.token_to_id("<|begin|>")) == 1
    hi = tokenizer.encode("hi", parse_special=False, add_bos=False)
    expected = [bos_id, *hi] if adds_bos else hi
    assert tokenizer.encode("hi", parse_special=False, add_bos=True) == expected


def test_ends_come_from_every_file_that_names_them(tmp_path: Path) -> None:
    reference = byte_level()
    path = directory(
        tmp_path,
        reference,
        config={"eos_token_id": 7},
        generation_config={"eos_token_id": [8, 9]},
        tokenizer_config={"eos_token": "<|turn|>", "chat_template": "{{ m }}<|eot_id|>"},
    )
    tokenizer = loaded(path)
    turn, eot = (reference.token_to_id(text) for text in ("<|turn|>", "<|eot_id|>"))
    assert tokenizer.eos_token_ids == {0, 7, 8, 9, turn, eot}
    assert tokenizer.eos_token_id == turn
    assert turn in tokenizer.special_token_ids
    assert 7 not in tokenizer.special_token_ids


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"tokenizer_config": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config": {"chat_template": "A"}, "chat_template__jinja": "B"}, "B"),
        ({"chat_template": {"chat_template": "C"}}, "C"),
        (
            {
                "tokenizer_config": {
                    "chat_template": [
                        {"name": "rag", "template": "D"},
                        {"name": "default", "template": "E"},
                    ]
                }
            },
            "E",
        ),
    ],
)
def test_the_chat_template(tmp_path: Path, files: Any, template: str | None) -> None:
    assert loaded(directory(tmp_path, byte_level(), **files)).chat_template == template


@pytest.mark.parametrize("prefix", ["prepend", "metaspace", "none"])
def test_sentencepiece_style_files(tmp_path: Path, prefix: str) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "h", "i", "hi", "\u2581hi"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("h", "i"), ("\u2581", "hi")]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    reference = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", "\u2581")
    if prefix == "metaspace":
        reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    elif prefix == "prepend":
        reference.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
    else:
        reference.normalizer = spaces
    reference.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    reference.add_special_tokens(["<unk>", "<s>", "</s>"])
    settings = {"bos_token": "<s>", "add_bos_token": True}
    tokenizer = loaded(directory(tmp_path, reference, tokenizer_config=settings))
    ids = tokenizer.encode("hi hi\n\u6f22", parse_special=False, add_bos=True)
    assert ids[1:] == reference.encode("hi hi\n\u6f22").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi hi\n\u6f22"
    start = b"hi" if prefix == "none" else b" hi"
    assert tokenizer.token_bytes(ids[1]) == start
    assert b"".join(map(tokenizer.token_bytes, ids)) == start + " hi\n\u6f22".encode()


def test_an_override_is_a_file_or_a_directory(tmp_path: Path) -> None:
    reference = byte_level()
    (tmp_path / "model").mkdir()
    (tmp_path / "other").mkdir()
    model = directory(tmp_path / "model", None)
    other = directory(tmp_path / "other", reference)
    for override in (other, other / "tokenizer.json"):
        tokenizer = loaded(model, str(override))
        assert tokenizer.encode("hi", parse_special=False, add_bos=False) == (
            reference.encode("hi").ids
        )
    with pytest.raises(ModelError, match=r"absent\.json: cannot be read"):
        loaded(model, str(tmp_path / "absent.json"))


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    path = directory(tmp_path, None)
    with pytest.raises(ModelError, match=r"tokenizer\.json: no such file.*--tokenizer"):
        loaded(path)
    (path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.model"):
        loaded(path)
    for content in (b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "Nope"}}'):
        (path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ModelError, match=r"tokenizer\.json: is not a valid") as caught:
            loaded(path)
        assert "\n" not in str(caught.value)


def test_broken_files_beside_it_are_named(tmp_path: Path) -> None:
    path = directory(tmp_path, byte_level(), tokenizer_config__json="{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        loaded(path)
    (path / "tokenizer_config.json").write_text('{"chat_template": 5}')
    with pytest.raises(ModelError, match="chat_template"):
        loaded(path)
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: is not UTF-8"):
        loaded(path)


def test_other_kinds_of_vocabularies_are_refused(tmp_path: Path) -> None:
    reference = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    reference.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        loaded(directory(tmp_path, reference))
