"""The decoder: one forward pass, written once against `Ops`. Architectures differ by data only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from takt.loading.base import Checkpoint
from takt.loading.convert import bfloat16_bits
from takt.models.architecture import LayerConfig, ModelConfig
from takt.models.rope import RopeConfig
from takt.models.tensor_names import TensorNames, tensor_names
from takt.models.weights import WeightReader
from takt.ops.base import AttentionSpec, Ops, Weight
from takt.types.precision import Operator, PrecisionInUse
from takt.types.quant import QuantTensor, QuantType


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer. `gate_up` stacks gate over up, `qkv` stacks q over k over v."""

    input_norm: Weight
    qkv: Weight
    attention: AttentionSpec
    output: Weight
    post_attention_norm: Weight | None
    mlp_norm: Weight
    gate_up: Weight
    down: Weight
    post_mlp_norm: Weight | None


@dataclass(frozen=True, slots=True)
class Decoder:
    """A loaded model. Shapes inside `forward` are `[num_tokens, width]` of the current step."""

    config: ModelConfig
    ops: Ops
    embedding: Weight
    embedding_scale: float
    layers: tuple[DecoderLayer, ...]
    final_norm: Weight
    head: Weight

    def forward(self) -> None:
        """One step, from token ids to sampled tokens; hand this to `Ops.program`."""
        ops, eps = self.ops, self.config.norm_eps
        x = ops.embed(self.embedding, self.embedding_scale)
        # Each norm adds its input to the residual first, normalised if the model does that, so a
        # layer's last sum belongs to the next layer's first norm.
        residual, post_norm = None, None
        for i, layer in enumerate(self.layers):
            x, residual = ops.norm(
                x, layer.input_norm, eps, residual=residual, post_weight=post_norm
            )
            q = ops.qkv_rope_cache(ops.linear(x, layer.qkv), layer.attention, i)
            x = ops.linear(ops.paged_attention(q, layer.attention, i), layer.output)
            x, residual = ops.norm(
                x, layer.mlp_norm, eps, residual=residual, post_weight=layer.post_attention_norm
            )
            x = ops.gated_mlp(x, layer.gate_up, layer.down, self.config.activation)
            post_norm = layer.post_mlp_norm
        x, _ = ops.norm(x, self.final_norm, eps, residual=residual, post_weight=post_norm)
        ops.sample(ops.logits(x, self.head, self.config.logit_softcap))


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    ops: Ops,
    *,
    precision: PrecisionInUse | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """Reads and packs all weights, one tensor at a time.

    `precision` says what matrices are packed as; None keeps what the file stores. `on_progress` is
    told bytes read and bytes in all. Raises `ModelError` where tensors and configuration do not
    agree, naming file, tensor and shapes.
    """
    names = tensor_names(checkpoint.format, post_norms=config.post_norms)

    def packed_type(name: str, stored: QuantType, num_columns: int) -> QuantType:
        if precision is None:
            return stored
        operator = names.operator_of(name)
        if operator is Operator.EMBED and config.tie_word_embeddings:
            operator = Operator.HEAD  # one table, and the head computes with it
        return precision.packed_type(operator, stored, num_columns)

    reader = WeightReader(checkpoint, packed_type, on_progress)
    loader = _LayerLoader(reader, names, config, ops)
    table = reader.matrix(names.embedding, config.vocab_size, config.hidden_size)
    embedding = ops.pack_linear([table])
    scale = _embedding_scale(config, table)
    del table
    layers = tuple(loader.layer(i) for i in range(config.num_layers))
    final_norm = ops.pack_vector(loader.norm_values(names.final_norm, config.hidden_size))
    if config.tie_word_embeddings:
        head = embedding
        reader.skip(names.head)
    else:
        head = ops.pack_linear([reader.matrix(names.head, config.vocab_size, config.hidden_size)])
    reader.finish(names.ignored_suffixes)
    return Decoder(config, ops, embedding, scale, layers, final_norm, head)


class _LayerLoader:
    """Packs layers one after the other; ropes that layers share are computed once."""

    def __init__(
        self, reader: WeightReader, names: TensorNames, config: ModelConfig, ops: Ops
    ) -> None:
        self._reader = reader
        self._names = names
        self._config = config
        self._ops = ops
        self._inv_freqs: dict[RopeConfig, np.ndarray] = {}
        self._kv_group_of = {
            layer: index for index, group in enumerate(config.kv_groups()) for layer in group.layers
        }

    def layer(self, i: int) -> DecoderLayer:
        config = self._config
        hidden, heads = config.hidden_size, config.num_heads * config.head_dim
        kv_heads, mlp = config.num_kv_heads * config.head_dim, config.intermediate_size
        pairs = config.qk_interleaved
        return DecoderLayer(
            input_norm=self._norm("input_norm", i, hidden),
            qkv=self._linear(
                i,
                hidden,
                config.qkv_bias,
                ("q", heads, config.num_heads if pairs else None),
                ("k", kv_heads, config.num_kv_heads if pairs else None),
                ("v", kv_heads, None),
            ),
            attention=self._attention(i, config.layers[i]),
            output=self._linear(i, heads, config.output_bias, ("output", hidden, None)),
            post_attention_norm=self._post_norm("post_attention_norm", i),
            mlp_norm=self._norm("mlp_norm", i, hidden),
            gate_up=self._linear(
                i, hidden, config.mlp_bias, ("gate", mlp, None), ("up", mlp, None)
            ),
            down=self._linear(i, mlp, config.mlp_bias, ("down", hidden, None)),
            post_mlp_norm=self._post_norm("post_mlp_norm", i),
        )

    def norm_values(self, name: str, width: int) -> np.ndarray:
        values = self._reader.vector(name, width)
        return values + np.float32(self._config.norm_offset)

    def _norm(self, role: str, i: int, width: int) -> Weight:
        return self._ops.pack_vector(self.norm_values(self._names.of(role, i) + ".weight", width))

    def _post_norm(self, role: str, i: int) -> Weight | None:
        return self._norm(role, i, self._config.hidden_size) if self._config.post_norms else None

    def _linear(
        self, i: int, num_columns: int, has_bias: bool | None, *parts: tuple[str, int, int | None]
    ) -> Weight:
        """Stacks `parts`: role, number of rows, and of heads whose rows are interleaved."""
        matrices: list[QuantTensor] = []
        for role, num_rows, interleaved in parts:
            name = self._names.of(role, i) + ".weight"
            matrices.append(
                self._reader.matrix(name, num_rows, num_columns, interleaved_heads=interleaved)
            )
        if has_bias is None:
            has_bias = any(self._reader.has(self._names.of(p[0], i) + ".bias") for p in parts)
        if not has_bias:
            return self._ops.pack_linear(matrices)
        bias = [
            self._reader.vector(
                self._names.of(role, i) + ".bias", num_rows, interleaved_heads=interleaved
            )
            for role, num_rows, interleaved in parts
        ]
        return self._ops.pack_linear(matrices, np.concatenate(bias))

    def _attention(self, i: int, layer: LayerConfig) -> AttentionSpec:
        config = self._config
        return AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            inv_freq=self._inv_freq(layer.rope),
            rope_magnitude=1.0,
            window=layer.window,
            kv_group=self._kv_group_of[i],
            q_norm=self._norm("q_norm", i, config.head_dim) if config.qk_norm else None,
            k_norm=self._norm("k_norm", i, config.head_dim) if config.qk_norm else None,
            norm_eps=config.norm_eps,
            logit_softcap=config.attention_softcap,
        )

    def _inv_freq(self, rope: RopeConfig) -> np.ndarray:
        values = self._inv_freqs.get(rope)
        if values is None:
            divisors = None
            if rope.divisors_tensor is not None:
                divisors = self._reader.vector(rope.divisors_tensor, self._config.head_dim // 2)
            values = rope.inv_freq(self._config.head_dim, divisors)
            self._inv_freqs[rope] = values
        return values


def _embedding_scale(config: ModelConfig, table: QuantTensor) -> float:
    """sqrt(hidden_size) in the type the table is stored in, as the reference multiplies it."""
    if not config.scale_embedding:
        return 1.0
    scale = np.float32(math.sqrt(config.hidden_size))
    kind = table.packed_type or table.type
    if kind is QuantType.F16:
        return float(np.float16(scale))
    if kind is QuantType.BF16:
        bits = bfloat16_bits(np.array([scale])).astype(np.uint32) << np.uint32(16)
        return float(bits.view(np.float32)[0])
    return float(scale)
