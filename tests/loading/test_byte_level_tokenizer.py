"""Byte-level vocabularies from GGUF metadata: ids, exact bytes, control tokens, bad metadata."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf_models import CONTROL, NORMAL, USER_DEFINED, read_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_texts import PUBLISHED, TEXTS, TRAINING_TEXTS
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from takt.errors import InvalidRequestError, ModelError, UnsupportedModelError
from takt.loading.base import Tokenizer
from takt.loading.checkpoint import open_checkpoint
from takt.loading.pre_tokenizers import PRE_TOKENIZERS
from takt.loading.tokenizer import load_eos_token_ids

MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def trained(steps: list[Any]) -> tokenizers.Tokenizer:
    """A small vocabulary with every byte in it, and the reference pipeline around it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=MARKERS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TRAINING_TEXTS, trainer)
    return tokenizer


def smollm_reference() -> tokenizers.Tokenizer:
    """The pipeline that SmolLM's tokenizer.json describes."""
    return trained(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def gguf_fields(reference: tokenizers.Tokenizer, pre: str, **changes: Any) -> dict[str, Any]:
    vocab = reference.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    pairs = json.loads(reference.to_str())["model"]["merges"]
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [CONTROL if token in MARKERS else NORMAL for token in tokens],
        "merges": [" ".join(pair) for pair in pairs],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture(scope="module")
def reference() -> tokenizers.Tokenizer:
    return smollm_reference()


@pytest.fixture(scope="module")
def tokenizer(reference: tokenizers.Tokenizer, tmp_path_factory: Any) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return read_tokenizer(path, gguf_fields(reference, "smollm"))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_models_own(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text, parse_special=True, add_bos=False)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=80))
def test_any_text_comes_back_byte_for_byte(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text, parse_special=False, add_bos=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    ids = tokenizer.encode(text, parse_special=True, add_bos=False)
    assert ids == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
@pytest.mark.parametrize("index", range(len(TEXTS)))
def test_splits_equal_those_of_the_published_tokenizers(name: str, index: int) -> None:
    pipeline = tokenizers.Tokenizer(models.BPE())
    PRE_TOKENIZERS[name].install(pipeline)
    text = TEXTS[index]
    if pipeline.normalizer is not None:
        text = pipeline.normalizer.normalize_str(text)
    pieces = [piece for piece, _ in pipeline.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == PUBLISHED[name][index]


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "don't 123 4  x\n", ["don", "'t", "\u0120123", "\u01204", "\u0120", "\u0120x",
                                       "\u010a"]),
        ("smollm", "a  12", ["a", "\u0120\u0120", "1", "2"]),
        ("starcoder", "x 9.", ["x", "\u0120", "9", "."]),
        ("default", "a+12345 b", ["a", "+", "123", "45", "\u0120b"]),
        ("tekken", "HelloWorld 12/\n", ["Hello", "World", "\u0120", "1", "2", "/\u010a"]),
        ("deepseek-coder", "if x:\n 12", ["if", "\u0120x", ":", "\u010a", "\u0120", "1", "2"]),
    ],
)  # fmt: skip
def test_splits_of_the_other_names(name: str, text: str, pieces: list[str]) -> None:
    pipeline = tokenizers.Tokenizer(models.BPE())
    PRE_TOKENIZERS[name].install(pipeline)
    assert [piece for piece, _ in pipeline.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_markers_are_control_tokens_only_where_asked(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>"
    parsed = tokenizer.encode(text, parse_special=True, add_bos=False)
    plain = tokenizer.encode(text, parse_special=False, add_bos=False)
    assert (parsed[0], parsed[-1]) == (1, 2)
    assert not tokenizer.special_token_ids & set(plain)
    assert tokenizer.decode(plain, skip_special_tokens=True) == text
    assert tokenizer.decode(parsed, skip_special_tokens=True) == "user\nhi"
    assert tokenizer.decode(parsed, skip_special_tokens=False) == text
    assert tokenizer.special_tokens() == {marker: i for i, marker in enumerate(MARKERS)}
    assert tokenizer.token_text(1) == "<|im_start|>"
    assert tokenizer.token_bytes(1) == b""


def test_ends_are_the_named_ones_and_those_the_template_writes(
    reference: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    def ends(**changes: Any) -> frozenset[int]:
        fields = gguf_fields(reference, "smollm", **changes)
        found = read_tokenizer(tmp_path / "m.gguf", fields).eos_token_ids
        assert load_eos_token_ids(open_checkpoint(tmp_path / "m.gguf")) == found
        return found

    plain = {"tokenizer.chat_template": None}
    assert ends(eos_token_id=1) == {0, 1, 2}
    assert ends(eos_token_id=1, **plain) == {0, 1}
    assert ends(eos_token_id=1, eot_token_id=2, **plain) == {0, 1, 2}
    assert ends(eos_token_id=None, **plain) == {0}


def test_an_end_token_that_is_ordinary_text_stays_text(
    reference: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    newline = reference.token_to_id("\u010a")
    fields = gguf_fields(reference, "smollm", eos_token_id=newline)
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields)
    assert newline in tokenizer.eos_token_ids
    assert newline not in tokenizer.special_token_ids
    assert tokenizer.encode("\n", parse_special=False, add_bos=False) == [newline]


def test_an_end_token_of_the_wrong_type_is_a_marker_still(
    reference: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    fields = gguf_fields(reference, "smollm", token_type=None)
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields)
    assert tokenizer.special_tokens() == {"<|im_start|>": 1, "<|im_end|>": 2}
    assert tokenizer.encode("<|im_end|>", parse_special=True, add_bos=False) == [2]
    assert 2 not in tokenizer.encode("<|im_end|>", parse_special=False, add_bos=False)


def test_the_end_token_is_the_one_the_file_names(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    assert tokenizer.eos_token_id == 2
    fields = gguf_fields(reference, "smollm", eos_token_id=None)
    assert read_tokenizer(tmp_path / "m.gguf", fields).eos_token_id is None


@pytest.mark.parametrize(
    ("pre", "flag", "adds_bos"),
    [("smollm", None, False), ("smollm", True, True), ("llama-bpe", None, True),
     ("llama-bpe", False, False)],
)  # fmt: skip
def test_the_begin_token_comes_once_where_the_model_has_it(
    reference: tokenizers.Tokenizer, tmp_path: Path, pre: str, flag: bool | None, adds_bos: bool
) -> None:
    fields = gguf_fields(reference, pre, add_bos_token=flag)
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields)
    assert tokenizer.adds_bos is adds_bos
    expected = [1] if adds_bos else []
    assert tokenizer.encode("", parse_special=False, add_bos=True) == expected
    assert tokenizer.encode("hi", parse_special=False, add_bos=True)[: len(expected)] == expected
    assert tokenizer.encode("hi", parse_special=False, add_bos=False)[:1] != [1]
    written = tokenizer.encode("<|im_start|>hi", parse_special=True, add_bos=True)
    assert written.count(1) == 1


def test_pieces_in_the_vocabulary_are_taken_whole_where_the_model_does(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fields: dict[str, Any] = {
        "model": "gpt2", "tokens": [*alphabet, "ab", "bc", "abc"], "merges": ["b c"],
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    whole = read_tokenizer(tmp_path / "a.gguf", {**fields, "pre": "llama-bpe"})
    merged = read_tokenizer(tmp_path / "b.gguf", {**fields, "pre": "qwen2"})
    assert whole.encode("abc", parse_special=False, add_bos=False) == [258]
    assert merged.encode("abc", parse_special=False, add_bos=False) == [alphabet.index("a"), 257]


def test_user_defined_tokens_are_text_that_is_found_whole(
    reference: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    fields = gguf_fields(reference, "smollm")
    first = len(fields["tokens"])
    fields["tokens"] += ["<think>", "a \u00e9", "<|fim|>"]
    fields["token_type"] += [USER_DEFINED] * 3
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields)
    for special in (False, True):
        ids = tokenizer.encode("x<think>a \u00e9y", parse_special=special, add_bos=False)
        assert ids[1:3] == [first, first + 1]
        assert tokenizer.decode(ids, skip_special_tokens=True) == "x<think>a \u00e9y"
    # The form of a control token: plain text in a message, whatever the file calls it.
    assert first + 2 not in tokenizer.encode("<|fim|>", parse_special=False, add_bos=False)
    assert tokenizer.encode("<|fim|>", parse_special=True, add_bos=False) == [first + 2]


def test_broken_utf8_becomes_one_mark_for_each_broken_part(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\u6f22", parse_special=False, add_bos=False)
    parts = [tokenizer.token_bytes(token_id) for token_id in ids]
    assert b"".join(parts) == "\u6f22".encode()
    vocab = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    start, middle, letter = vocab[b"\xe6"], vocab[b"\xbc"], vocab[b"x"]
    assert tokenizer.decode([start, middle, letter], skip_special_tokens=True) == "\ufffdx"
    assert tokenizer.decode([middle, middle], skip_special_tokens=True) == "\ufffd\ufffd"


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    spelt = {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= spelt


def test_ids_outside_the_vocabulary_write_nothing(tokenizer: Tokenizer) -> None:
    for token_id in (tokenizer.vocab_size, 2**31 - 1, -1):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.token_text(token_id) == ""


@pytest.mark.parametrize("num_times", [1, 5000])
def test_lone_surrogates_are_refused(tokenizer: Tokenizer, num_times: int) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode("a\ud800b" * num_times, parse_special=False, add_bos=True)


@pytest.mark.parametrize("parse_special", [True, False])
def test_long_texts_are_encoded_as_short_ones(tokenizer: Tokenizer, parse_special: bool) -> None:
    line = "caf\u00e9 \U0001f680 42 <|im_end|>\n"
    one, many = (
        tokenizer.encode(line * n, parse_special=parse_special, add_bos=False) for n in (1, 200)
    )
    assert many == one * 200


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    num_ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal num_ticks
        while not done.is_set():
            num_ticks += 1
            time.sleep(0)

    other = threading.Thread(target=tick)
    other.start()
    try:
        # Held all the time, they would run once or twice however long the text is.
        for num_words in (100_000, 1_000_000):
            before = num_ticks
            tokenizer.encode("word " * num_words, parse_special=False, add_bos=False)
            if num_ticks > before + 10:
                break
        assert num_ticks > before + 10
    finally:
        done.set()
        other.join()


@pytest.mark.parametrize("pre", ["made-up", "", None])
def test_an_unknown_pre_tokenizer_is_refused_with_the_known_ones(
    reference: tokenizers.Tokenizer, tmp_path: Path, pre: str | None
) -> None:
    fields = gguf_fields(reference, "smollm")
    fields.pop("pre")
    if pre is not None:
        fields["pre"] = pre
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre.*llama-bpe.*smollm"):
        read_tokenizer(tmp_path / "m.gguf", fields)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, r"tokenizer\.ggml\.model.*gpt2, llama"),
        ({"model": None}, r"tokenizer\.ggml\.model.*missing"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens: is missing"),
        ({"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens.*strings"),
        ({"tokens": ["a", "a"], "token_type": None}, r"tokenizer\.ggml\.tokens.*twice"),
        ({"tokens": "a"}, r"tokenizer\.ggml\.tokens.*array"),
        ({"token_type": [1]}, r"tokenizer\.ggml\.token_type.*1 entries"),
        ({"merges": None}, r"tokenizer\.ggml\.merges: is missing"),
        ({"merges": ["ab"]}, r"tokenizer\.ggml\.merges.*two tokens"),
        ({"merges": ["never seen"]}, r"tokenizer\.ggml\.merges"),
        ({"eos_token_id": 70_000}, r"tokenizer\.ggml\.eos_token_id.*70000"),
        ({"bos_token_id": "x"}, r"tokenizer\.ggml\.bos_token_id"),
        ({"bos_token_id": None, "add_bos_token": True}, r"tokenizer\.ggml\.bos_token_id.*missing"),
        ({"add_bos_token": 1}, r"tokenizer\.ggml\.add_bos_token.*boolean"),
        ({"tokenizer.chat_template": 5}, r"tokenizer\.chat_template"),
    ],
)
def test_broken_metadata_is_refused_by_field(
    reference: tokenizers.Tokenizer, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf: {words}"):
        read_tokenizer(tmp_path / "m.gguf", gguf_fields(reference, "smollm", **changes))


def test_added_tokens_keep_the_flags_of_the_published_file(
    reference: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    """`--tokenizer`: the file's own pipeline, the model file's ends."""
    reference = smollm_reference()
    reference.add_tokens([AddedToken("<gap>", lstrip=True, rstrip=True, normalized=False)])
    reference.save(str(tmp_path / "tokenizer.json"))
    fields = gguf_fields(smollm_reference(), "made-up")
    tokenizer = read_tokenizer(tmp_path / "m.gguf", fields, str(tmp_path / "tokenizer.json"))
    for special in (False, True):
        ids = tokenizer.encode("a <gap> b", parse_special=special, add_bos=False)
        assert ids == reference.encode("a <gap> b").ids
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.chat_template == TEMPLATE
