"""Time of a step, operator by operator, from a device's calibrated figures."""

from __future__ import annotations

from dataclasses import dataclass, fields

from takt.plan.communication import all_reduce_s, hop_s
from takt.plan.hardware import Accelerator, GemmCurve
from takt.plan.model_shape import ModelShape
from takt.plan.precision import Precision
from takt.plan.topology import Topology
from takt.scheduler.step_time import StepFeatures

_ACTIVATION_BYTES = 2
_LEAST_TILE_ROWS = 16
_LEAST_SPLIT_DEPTH = 2048
"""Depth below which libraries do not split a product further: the sum of parts costs more."""


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """Seconds of a step by operator, over all layers and stages."""

    gemm: float
    attention: float
    other_kernels: float
    all_reduce: float
    hops: float
    head: float
    host: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, field.name) for field in fields(self)))

    @property
    def largest(self) -> str:
        """Name of the operator that takes longest."""
        return max((field.name for field in fields(self)), key=lambda name: getattr(self, name))


class StepCost:
    """Durations of the steps of one replica.

    A product takes the longer of reading its weights, at the share of the bandwidth measured for
    their size, and of its tiles over the device's units. KV is read at the attention's share.
    Stages run at the pace of the one with most layers.
    """

    def __init__(
        self,
        model: ModelShape,
        accelerator: Accelerator,
        topology: Topology,
        precision: Precision,
    ) -> None:
        self.model = model
        self.accelerator = accelerator
        self.topology = topology
        self.precision = precision
        self._num_layers = topology.pp * -(-model.num_layers // topology.pp)
        curves = accelerator.gemm_curves
        self._curve = curves.get(precision.weights, curves["bf16"])
        self._peak = accelerator.flops(precision.arithmetic) * accelerator.efficiency
        self._weight_bytes = model.block_bytes(precision.weight_bytes) / model.block_params
        self._fixed: dict[tuple[int, int, bool], tuple[float, float, float, float]] = {}
        self._kv_s_per_token = self._kv_seconds_per_token()
        self._pair_s = self._attention_seconds_per_pair()

    def predict_ns(self, features: StepFeatures) -> float:
        return self.breakdown(features).total * 1e9

    def breakdown(self, features: StepFeatures) -> StepBreakdown:
        seqs, prefill_tokens, kv_tokens, pairs = features
        has_prefill = prefill_tokens > 0
        key = (seqs + prefill_tokens, seqs + has_prefill, has_prefill)
        fixed = self._fixed.get(key)
        if fixed is None:
            fixed = self._fixed[key] = self._fixed_costs(*key)
        gemm, all_reduces, hops, head = fixed
        accelerator = self.accelerator
        seen = self.model.kv_tokens_seen(kv_tokens, seqs + has_prefill)
        attention = max(seen * self._kv_s_per_token, pairs * self._pair_s)
        other = accelerator.other_kernels_s_per_layer
        if has_prefill:
            other += accelerator.prefill_kernels_s_per_layer
        other *= self._num_layers
        device = gemm + attention + other + all_reduces + hops + head
        return StepBreakdown(
            gemm=gemm,
            attention=attention,
            other_kernels=other,
            all_reduce=all_reduces,
            hops=hops,
            head=head,
            host=max(0.0, accelerator.host_s - device),
        )

    def breakdown_of(
        self, num_decode_seqs: int, num_prefill_tokens: int, num_kv_tokens: int, num_qk_pairs: int
    ) -> StepBreakdown:
        return self.breakdown(
            StepFeatures(num_decode_seqs, num_prefill_tokens, num_kv_tokens, num_qk_pairs)
        )

    def decode_s(self, num_seqs: int, context: float) -> float:
        """A step of `num_seqs` decodes, each with `context` tokens."""
        tokens = round(num_seqs * context)
        return self.breakdown(StepFeatures(num_seqs, 0, tokens, tokens)).total

    def mixed_s(self, num_seqs: int, context: float, chunk: int, prefix: int = 0) -> float:
        """Decodes beside `chunk` tokens of a prompt whose first `prefix` tokens are computed."""
        tokens = round(num_seqs * context)
        pairs = chunk * prefix + chunk * (chunk + 1) // 2
        features = StepFeatures(num_seqs, chunk, tokens + prefix + chunk, tokens + pairs)
        return self.breakdown(features).total

    # -- parts --------------------------------------------------------------------------------
    def _fixed_costs(
        self, num_tokens: int, num_rows: int, has_prefill: bool
    ) -> tuple[float, float, float, float]:
        """Products, all-reduces, hops and head: what depends on the number of tokens alone."""
        model, accelerator, topology = self.model, self.accelerator, self.topology
        message = num_tokens * model.hidden_size * _ACTIVATION_BYTES
        reduces = 2 * self._num_layers * all_reduce_s(accelerator, topology.tp, message)
        per_node = accelerator.devices_per_node
        hops = sum(
            hop_s(
                accelerator,
                message,
                crosses_nodes=stage * topology.tp // per_node
                != (stage - 1) * topology.tp // per_node,
            )
            for stage in range(1, topology.pp)
        )
        gemm = self._num_layers * self._layer_gemms(num_tokens)
        head = self._head(num_rows)
        return gemm, reduces, hops, head

    def _layer_gemms(self, num_tokens: int) -> float:
        model, tp = self.model, self.topology.tp
        query = model.num_heads * model.head_dim // tp
        kv = max(1, model.num_kv_heads // tp) * model.head_dim
        hidden, inner = model.hidden_size, model.intermediate_size // tp
        experts = model.distinct_experts(num_tokens)
        per_expert = num_tokens
        if model.num_experts:
            per_expert = round(num_tokens * model.num_active_experts / experts)
        return (
            self._gemm(num_tokens, query + 2 * kv, hidden)
            + self._gemm(num_tokens, hidden, query)
            + self._gemm(per_expert, 2 * inner, hidden, experts)
            + self._gemm(per_expert, hidden, inner, experts)
        )

    def _gemm(self, rows: int, columns: int, depth: int, count: float = 1.0) -> float:
        """`count` products `[rows, depth] x [depth, columns]` in one kernel."""
        num_bytes = columns * depth * count * self._weight_bytes
        read = self._read_s(self._curve, num_bytes)
        compute = count * self._tiles_s(rows, columns, depth, self._peak)
        return max(read, compute)

    def _read_s(self, curve: GemmCurve, num_bytes: float) -> float:
        bandwidth = self.accelerator.bandwidth_bytes_s * curve.share(num_bytes)
        return curve.floor_s + max(num_bytes / bandwidth, self.accelerator.kernel_s)

    def _tiles_s(self, rows: int, columns: int, depth: int, peak: float) -> float:
        """Tiles over units. Tiles fewer than units leave some idle unless the depth is split.

        Tiles of few rows are as low as the rows need, a power of two from 16 on; a row of tiles is
        computed whole, hence the step from 128 tokens to 129.
        """
        accelerator = self.accelerator
        height = _LEAST_TILE_ROWS
        while height < min(rows, accelerator.tile_rows):
            height *= 2
        height = min(height, accelerator.tile_rows)
        units = accelerator.num_units
        tiles = -(-rows // height) * -(-columns // accelerator.tile_columns)
        splits = max(1, min(units // tiles, depth // _LEAST_SPLIT_DEPTH))
        waves = max(1.0 / splits, tiles / units)
        per_wave = 2.0 * height * accelerator.tile_columns * depth * units
        return waves * per_wave / peak

    def _head(self, num_rows: int) -> float:
        model, accelerator, tp = self.model, self.accelerator, self.topology.tp
        read = self._read_s(
            accelerator.gemm_curves["bf16"], model.head_bytes(self.precision.head_bytes) / tp
        )
        peak = accelerator.flops("bf16") * accelerator.efficiency
        columns = -(-model.vocab_size // tp)
        return max(read, self._tiles_s(num_rows, columns, model.hidden_size, peak))

    def _kv_seconds_per_token(self) -> float:
        """All layers, one rank: KV heads are divided, or repeated where there are too few."""
        model, accelerator = self.model, self.accelerator
        heads = max(1, model.num_kv_heads // self.topology.tp)
        elements = 2 * self._num_layers * heads * model.head_dim
        bandwidth = accelerator.bandwidth_bytes_s * accelerator.attention_share
        return elements * self.precision.kv_bytes / bandwidth

    def _attention_seconds_per_pair(self) -> float:
        """Scores and weighted sums: 4 operations per pair, head and dimension."""
        model, accelerator = self.model, self.accelerator
        heads = model.num_heads / self.topology.tp
        operations = 4.0 * self._num_layers * heads * model.head_dim
        return operations / (accelerator.flops("bf16") * accelerator.efficiency)
