"""Names for the instructions of a captured program, from the calls that made them."""

from __future__ import annotations

from collections.abc import Sequence

from takt import _native
from takt.ops.native.program import Span
from takt.types.instruction import InstructionLabel

_NAMES = {"norm": "norm", "qkv_rope_cache": "rope, KV write", "all_reduce": "all-reduce"}


def label_instructions(
    spans: Sequence[Span], num_instructions: int, windows: Sequence[int | None]
) -> list[InstructionLabel]:
    """One label for each instruction; those before the first call copy KV blocks.

    `windows[layer]` is the layer's sliding window. Products are named by their neighbours: qkv
    feeds rope, the attention's output product reads what attention made.
    """
    labels = [InstructionLabel("block copy")] * num_instructions
    calls = _Calls(spans, windows)
    for position, span in enumerate(spans):
        kinds = calls.labels(position)
        for i in range(span.end - span.first):
            labels[span.first + i] = kinds[i % len(kinds)]
    return labels


class _Calls:
    def __init__(self, spans: Sequence[Span], windows: Sequence[int | None]) -> None:
        self._spans = spans
        self._windows = windows
        self._heads: dict[int, _native.Weight] = {}
        self._maker: dict[int, int] = {}
        self._reader: dict[int, int] = {}
        for position, span in enumerate(spans):
            operator = span.key[0]
            if operator == "logits":
                self._heads[span.result] = span.key[2]
                continue
            if operator not in ("embed", "sample"):
                self._reader.setdefault(span.key[1], position)
            for value in span.result if isinstance(span.result, tuple) else (span.result,):
                if value is not None:
                    self._maker.setdefault(value, position)
        self._starts = self._layer_starts()
        mlps = [p for p, span in enumerate(spans) if span.key[0] == "gated_mlp"]
        self._end = max(mlps, default=-1) + 1

    def _layer_starts(self) -> list[int]:
        """A layer begins with the norm whose result the product before rope reads."""
        starts = []
        for position, span in enumerate(self._spans):
            if span.key[0] == "qkv_rope_cache":
                product = self._maker.get(span.key[1], position)
                starts.append(self._maker.get(self._spans[product].key[1], product))
        return starts

    def _layer(self, position: int) -> int | None:
        if position >= self._end or not self._starts or position < self._starts[0]:
            return None
        return sum(start <= position for start in self._starts) - 1

    def labels(self, position: int) -> list[InstructionLabel]:
        span, layer = self._spans[position], self._layer(position)
        operator = span.key[0]
        if operator == "linear":
            return [_product(self._product_kind(span), layer, span.key[2])]
        if operator == "gated_mlp":
            return [
                _product("gate and up", layer, span.key[2]),
                _product("down", layer, span.key[3]),
            ]
        if operator == "paged_attention":
            window = self._windows[layer] if layer is not None else None
            width = self._query_width(span)
            return [
                InstructionLabel("attention", layer, window=window, query_width=width),
                InstructionLabel("attention, combine", layer),
            ]
        if operator == "sample":
            head = self._heads[span.key[1]]
            return [
                _product("logits", None, head, is_per_row=True),
                InstructionLabel("sample", is_per_row=True),
            ]
        if operator == "embed":
            return [InstructionLabel("embed")]
        return [InstructionLabel(_NAMES.get(operator, operator), layer)]

    def _product_kind(self, span: Span) -> str:
        reader = self._reader.get(span.result)
        if reader is not None and self._spans[reader].key[0] == "qkv_rope_cache":
            return "qkv"
        maker = self._maker.get(span.key[1])
        if maker is not None and self._spans[maker].key[0] == "paged_attention":
            return "attention output"
        return "linear"

    def _query_width(self, span: Span) -> int:
        """Heads times their size: what the product after attention reads."""
        reader = self._reader.get(span.result)
        if reader is None or self._spans[reader].key[0] != "linear":
            return 0
        return int(self._spans[reader].key[2].num_columns)


def _product(
    kind: str, layer: int | None, weight: _native.Weight, *, is_per_row: bool = False
) -> InstructionLabel:
    return InstructionLabel(
        kind,
        layer,
        weight_bytes=weight.nbytes,
        weight_rows=weight.num_rows,
        weight_columns=weight.num_columns,
        is_per_row=is_per_row,
    )
