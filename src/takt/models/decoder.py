"""The decoder: one forward pass, written once against `Ops`. Architectures differ by data only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from takt.loading.base import Checkpoint
from takt.loading.convert import bfloat16_bits
from takt.models.architecture import LayerConfig, ModelConfig
from takt.models.rope import RopeConfig
from takt.models.sharding import whole_model
from takt.models.tensor_names import TensorNames, tensor_names
from takt.models.weights import WeightReader
from takt.ops.base import Activation, AttentionSpec, Ops, Weight
from takt.parallel.shard import Shard, Span
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
    shard: Shard
    embedding: Weight | None
    embedding_scale: float
    carried_post_norm: Weight | None
    """Of the last layer of the stage before, whose sum this stage's first norm takes."""
    layers: tuple[DecoderLayer, ...]
    final_norm: Weight | None
    head: Weight | None

    def forward(self) -> None:
        """One step, from token ids to sampled tokens; hand this to `Ops.program`."""
        ops, eps = self.ops, self.config.norm_eps
        x, residual = self._begin()
        # Each norm adds its input to the residual first, normalised if the model does that, so a
        # layer's last sum belongs to the next layer's first norm.
        post_norm = self.carried_post_norm
        for i, layer in enumerate(self.layers):
            x, residual = ops.norm(
                x, layer.input_norm, eps, residual=residual, post_weight=post_norm
            )
            q = ops.qkv_rope_cache(ops.linear(x, layer.qkv), layer.attention, i)
            x = self._summed(ops.linear(ops.paged_attention(q, layer.attention, i), layer.output))
            x, residual = ops.norm(
                x, layer.mlp_norm, eps, residual=residual, post_weight=layer.post_attention_norm
            )
            x = self._summed(ops.gated_mlp(x, layer.gate_up, layer.down, self.config.activation))
            post_norm = layer.post_mlp_norm
        if not self.shard.is_last_stage:
            ops.send(x)
            ops.send(residual)
            return
        x, _ = ops.norm(x, self.final_norm, eps, residual=residual, post_weight=post_norm)
        logits = ops.logits(x, self.head, self.config.logit_softcap)
        if self.shard.tensor_size > 1:
            logits = ops.gather(logits, self.shard.vocab_borders)
        ops.sample(logits)

    def _begin(self) -> tuple[Activation, Activation | None]:
        """The first layer's input and residual: of the step's tokens, or from the stage before."""
        ops, shard = self.ops, self.shard
        if not shard.is_first_stage:
            x = ops.receive(self.config.hidden_size)
            return x, ops.receive(self.config.hidden_size)
        x = ops.embed(
            self.embedding,
            self.embedding_scale,
            first_token=shard.vocab.first,
            vocab_size=self.config.vocab_size,
        )
        return self._summed(x), None

    def _summed(self, x: Activation) -> Activation:
        """Over the group: each rank has computed the part that its columns give."""
        return self.ops.all_reduce(x) if self.shard.tensor_size > 1 else x


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    ops: Ops,
    *,
    precision: PrecisionInUse | None = None,
    shard: Shard | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """Reads and packs the weights of `shard` (all if None), one tensor at a time.

    `precision` says what matrices are packed as; None keeps what the file stores. `on_progress` is
    told bytes passed and bytes in all. Raises `ModelError` where tensors and configuration do not
    agree, naming file, tensor and shapes.
    """
    shard = shard or whole_model(checkpoint, config)
    names = tensor_names(checkpoint.format, post_norms=config.post_norms)

    def packed_type(name: str, stored: QuantType, num_columns: int) -> QuantType:
        if precision is None:
            return stored
        operator = names.operator_of(name)
        if operator is Operator.EMBED and config.tie_word_embeddings:
            operator = Operator.HEAD  # one table, and the head computes with it
        return precision.packed_type(operator, stored, num_columns)

    reader = WeightReader(checkpoint, packed_type, on_progress)
    loader = _LayerLoader(reader, names, config, ops, shard)
    tables = _load_tables(reader, names, config, ops, shard)
    layers = tuple(loader.layer(i) for i in range(*shard.layers))
    final_norm = None
    if shard.is_last_stage:
        final_norm = ops.pack_vector(loader.norm_values(names.final_norm, config.hidden_size))
    decoder = Decoder(
        config,
        ops,
        shard,
        tables.embedding,
        tables.embedding_scale,
        loader.carried_post_norm(),
        layers,
        final_norm,
        tables.head,
    )
    loader.skip_other_stages()
    reader.finish(names.ignored_suffixes)
    return decoder


@dataclass(frozen=True, slots=True)
class _Tables:
    """A rank's rows of the embedding and of the head, on the stages that use them."""

    embedding: Weight | None
    embedding_scale: float
    head: Weight | None


def _load_tables(
    reader: WeightReader, names: TensorNames, config: ModelConfig, ops: Ops, shard: Shard
) -> _Tables:
    def rows(name: str) -> QuantTensor:
        return reader.matrix(name, config.vocab_size, config.hidden_size, rows=shard.vocab)

    is_tied = config.tie_word_embeddings
    embedding, head, scale = None, None, 1.0
    if shard.is_first_stage or (is_tied and shard.is_last_stage):
        table = rows(names.embedding)
        embedding, scale = ops.pack_linear([table]), _embedding_scale(config, table)
    if shard.is_last_stage:
        head = embedding if is_tied else ops.pack_linear([rows(names.head)])
    reader.skip(names.embedding)
    reader.skip(names.head)
    return _Tables(embedding if shard.is_first_stage else None, scale, head)


@dataclass(frozen=True, slots=True)
class _Rows:
    """`rows` of the matrix of a role, of `num_rows` in all."""

    role: str
    num_rows: int
    rows: Span
    interleaved_heads: int | None = None


class _LayerLoader:
    """Packs layers one after the other; ropes that layers share are computed once."""

    def __init__(
        self,
        reader: WeightReader,
        names: TensorNames,
        config: ModelConfig,
        ops: Ops,
        shard: Shard,
    ) -> None:
        self._reader = reader
        self._names = names
        self._config = config
        self._ops = ops
        self._shard = shard
        self._inv_freqs: dict[RopeConfig, np.ndarray] = {}
        self._kv_group_of = {
            layer: index for index, group in enumerate(config.kv_groups()) for layer in group.layers
        }

    def layer(self, i: int) -> DecoderLayer:
        config, shard = self._config, self._shard
        hidden, head_dim, mlp = config.hidden_size, config.head_dim, config.intermediate_size
        q = _Rows("q", config.num_heads * head_dim, shard.heads.times(head_dim))
        k = _Rows("k", config.num_kv_heads * head_dim, shard.kv_heads.times(head_dim))
        v = replace(k, role="v")
        if config.qk_interleaved:
            q = replace(q, interleaved_heads=shard.heads.size)
            k = replace(k, interleaved_heads=shard.kv_heads.size)
        # The next layer's first norm takes this layer's last sum, perhaps on another stage.
        ends_stage = i == shard.layers.end - 1 and not shard.is_last_stage
        return DecoderLayer(
            input_norm=self._norm("input_norm", i, hidden),
            qkv=self._column_parallel(i, config.qkv_bias, q, k, v),
            attention=self._attention(i, config.layers[i]),
            output=self._row_parallel(
                i, config.output_bias, "output", q.num_rows, shard.heads.times(head_dim)
            ),
            post_attention_norm=self._post_norm("post_attention_norm", i),
            mlp_norm=self._norm("mlp_norm", i, hidden),
            gate_up=self._column_parallel(
                i, config.mlp_bias, _Rows("gate", mlp, shard.mlp), _Rows("up", mlp, shard.mlp)
            ),
            down=self._row_parallel(i, config.mlp_bias, "down", mlp, shard.mlp),
            post_mlp_norm=None if ends_stage else self._post_norm("post_mlp_norm", i),
        )

    def carried_post_norm(self) -> Weight | None:
        first = self._shard.layers.first
        return self._post_norm("post_mlp_norm", first - 1) if first > 0 else None

    def skip_other_stages(self) -> None:
        """Marks what other stages hold as known."""
        shard, names = self._shard, self._names
        for i in range(self._config.num_layers):
            roles = (
                ("post_mlp_norm",) if shard.layers.first <= i < shard.layers.end else names.roles
            )
            for role in roles:
                if role in names.roles:
                    self._reader.skip(names.of(role, i) + ".weight")
                    self._reader.skip(names.of(role, i) + ".bias")
        if not shard.is_last_stage:
            self._reader.skip(names.final_norm)
        for layer in self._config.layers:
            if layer.rope.divisors_tensor is not None:
                self._reader.skip(layer.rope.divisors_tensor)

    def norm_values(self, name: str, width: int) -> np.ndarray:
        values = self._reader.vector(name, width)
        return values + np.float32(self._config.norm_offset)

    def _norm(self, role: str, i: int, width: int) -> Weight:
        return self._ops.pack_vector(self.norm_values(self._names.of(role, i) + ".weight", width))

    def _post_norm(self, role: str, i: int) -> Weight | None:
        return self._norm(role, i, self._config.hidden_size) if self._config.post_norms else None

    def _column_parallel(self, i: int, has_bias: bool | None, *parts: _Rows) -> Weight:
        """Stacks this rank's rows of each part."""
        hidden = self._config.hidden_size
        matrices = [
            self._reader.matrix(
                self._names.of(part.role, i) + ".weight",
                part.num_rows,
                hidden,
                rows=part.rows,
                interleaved_heads=part.interleaved_heads,
            )
            for part in parts
        ]
        if not self._has_bias(i, has_bias, *(part.role for part in parts)):
            return self._ops.pack_linear(matrices)
        bias = [
            self._reader.vector(
                self._names.of(part.role, i) + ".bias",
                part.num_rows,
                part=part.rows,
                interleaved_heads=part.interleaved_heads,
            )
            for part in parts
        ]
        return self._ops.pack_linear(matrices, np.concatenate(bias))

    def _row_parallel(
        self, i: int, has_bias: bool | None, role: str, num_columns: int, columns: Span
    ) -> Weight:
        """This rank's columns; the first of the group adds the bias."""
        hidden, name = self._config.hidden_size, self._names.of(role, i)
        matrix = self._reader.matrix(name + ".weight", hidden, num_columns, columns=columns)
        if not self._has_bias(i, has_bias, role):
            return self._ops.pack_linear([matrix])
        if not self._shard.is_first_of_group:
            self._reader.skip(name + ".bias")
            return self._ops.pack_linear([matrix])
        return self._ops.pack_linear([matrix], self._reader.vector(name + ".bias", hidden))

    def _has_bias(self, i: int, has_bias: bool | None, *roles: str) -> bool:
        if has_bias is not None:
            return has_bias
        return any(self._reader.has(self._names.of(role, i) + ".bias") for role in roles)

    def _attention(self, i: int, layer: LayerConfig) -> AttentionSpec:
        config = self._config
        return AttentionSpec(
            num_heads=self._shard.heads.size,
            num_kv_heads=self._shard.kv_heads.size,
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
    """sqrt(hidden_size) in the type the table is kept in, as the reference multiplies it."""
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
