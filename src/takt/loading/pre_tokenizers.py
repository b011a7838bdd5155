"""How byte-level vocabularies split a text before merging, by the name GGUF files give it.

Only names whose split was compared with the tokenizer of the model itself, or with the pattern the
format's reference implementation quotes from it, are listed. A near miss costs 8 to 20 % more
tokens and worse answers without any error, so an unknown name is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from takt.errors import UnsupportedModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`splits` are applied one after the other, each to the pieces the one before left.

    With `ignore_merges` a piece that is itself in the vocabulary is taken whole. `adds_bos` holds
    where the file does not say.
    """

    splits: tuple[str, ...]
    is_nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def install(self, tokenizer: Tokenizer) -> None:
        if self.is_nfc:
            tokenizer.normalizer = normalizers.NFC()
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.splits
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


_LLAMA3_SPLIT = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_SPLIT = PreTokenizer((_QWEN2,), is_nfc=True)
_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))

PRE_TOKENIZERS = {
    "default": PreTokenizer(_DEFAULT),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
}


def pre_tokenizer_named(name: object, where: str) -> PreTokenizer:
    """Raises `UnsupportedModelError` that lists the known names; `where` is the file."""
    known = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if known is None:
        what = "is missing" if name is None else f"{name!r} is unknown"
        raise UnsupportedModelError(
            f"{where}: tokenizer.ggml.pre: {what}; known are {', '.join(sorted(PRE_TOKENIZERS))}. "
            "--tokenizer takes the model's own tokenizer.json instead"
        )
    return known
