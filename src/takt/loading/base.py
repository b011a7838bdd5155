"""What every reader of model files offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from takt.types.quant import QuantTensor, QuantType


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` is `[num_rows, num_columns]` or `[num_columns]`, rows outermost."""

    name: str
    type: QuantType
    shape: tuple[int, ...]


class Checkpoint(Protocol):
    """An open model: GGUF file or Hugging Face directory. Reading is by `pread`, never mapped."""

    format: str  # "gguf" | "safetensors"
    path: Path
    metadata: Mapping[str, Any]
    """GGUF key-values (big arrays as lists), or the parsed config.json."""
    tensors: Mapping[str, TensorInfo]

    @property
    def num_bytes_read(self) -> int:
        """Bytes that reads have returned so far, headers included."""
        ...

    def read(
        self,
        name: str,
        *,
        rows: tuple[int, int] | None = None,
        columns: tuple[int, int] | None = None,
    ) -> QuantTensor:
        """Reads `rows` [first, last) and `columns` of a tensor, touching only their bytes.

        Columns must fall on group borders; raises `ModelError` naming file and tensor.
        """
        ...

    def close(self) -> None: ...


class Tokenizer(Protocol):
    vocab_size: int
    bos_token_id: int | None
    adds_bos: bool
    """True if the model's own tokenizer begins a text with `bos_token_id`."""
    eos_token_id: int | None
    """The end token that the model file names; chat templates write it as `eos_token`."""
    eos_token_ids: frozenset[int]
    """Ids that end a generation (end of text, end of turn)."""
    special_token_ids: frozenset[int]
    chat_template: str | None

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        """`parse_special` turns written markers such as `<|im_end|>` into their control tokens.

        `add_bos` asks for the begin token if the model uses one; it is never added twice.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes that a token adds to a text; b"" for control tokens."""
        ...

    def token_text(self, token_id: int) -> str:
        """The token as its vocabulary writes it, control tokens included (for logprobs)."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Text of the tokens; each maximal broken part of UTF-8 becomes one U+FFFD."""
        ...

    def special_tokens(self) -> Mapping[str, int]:
        """Markers that `parse_special` recognises."""
        ...
