"""A small random decoder, built straight with `Ops`, and the same in float64 numpy.

No model files: weights are drawn from a seed, so that two `Ops` can be given the very same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from step_driver import StepDriver
from takt.ops.base import AttentionSpec, Ops
from takt.types.kv import KVDtype, KVGroupSpec
from takt.types.quant import QuantTensor, QuantType

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 32
HIDDEN, INNER, VOCAB = 128, 192, 320
EPS = 1e-5


def quantized(values: np.ndarray, quant_type: QuantType) -> tuple[QuantTensor, np.ndarray]:
    """The tensor as a file would store it, and the values it then holds, in float64."""
    ggml_type = GGMLQuantizationType[quant_type.name]
    raw = quantize(values.astype(np.float32), ggml_type).view(np.uint8).reshape(len(values), -1)
    return QuantTensor(raw, quant_type, values.shape), dequantize(raw, ggml_type).astype(float)


@dataclass
class RandomLayer:
    """`kinds` are storage types of q, k, v, output, gate, up and down."""

    window: int | None = None
    kinds: tuple[QuantType, ...] = (QuantType.F32,) * 7
    post_norms: bool = False
    head_norms: bool = False
    bias: bool = False
    activation: str = "silu"


@dataclass
class RandomModel:
    """`values[name]` are float64 weights; `tensors[name]` what `Ops` packs."""

    layers: list[RandomLayer]
    head: QuantType = QuantType.F32
    softcap: float = 0.0
    vocab: int = VOCAB
    values: dict[str, np.ndarray] = field(default_factory=dict)
    tensors: dict[str, QuantTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self._matrix("embed", self.vocab, HIDDEN, self.head, spread=1.0)
        shapes = {
            "q": (HEADS * HEAD_DIM, HIDDEN),
            "k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "output": (HIDDEN, HEADS * HEAD_DIM),
            "gate": (INNER, HIDDEN),
            "up": (INNER, HIDDEN),
            "down": (HIDDEN, INNER),
        }
        for i, layer in enumerate(self.layers):
            for (name, (rows, cols)), kind in zip(shapes.items(), layer.kinds, strict=True):
                self._matrix(f"{name}{i}", rows, cols, kind, spread=cols**-0.5)
            for name in ("norm", "mlp_norm", "post_attention", "post_mlp"):
                self.values[f"{name}{i}"] = self.rng.uniform(0.5, 1.5, HIDDEN)
            for name in ("q_norm", "k_norm"):
                self.values[f"{name}{i}"] = self.rng.uniform(0.5, 1.5, HEAD_DIM)
            self.values[f"bias{i}"] = self.rng.normal(size=(HEADS + 2 * KV_HEADS) * HEAD_DIM)
        self.values["final"] = self.rng.uniform(0.5, 1.5, HIDDEN)
        self.groups = self._groups()

    def _matrix(self, name: str, rows: int, cols: int, kind: QuantType, spread: float) -> None:
        drawn = self.rng.normal(size=(rows, cols)) * spread
        self.tensors[name], self.values[name] = quantized(drawn, kind)

    def _groups(self) -> tuple[KVGroupSpec, ...]:
        windows = list(dict.fromkeys(layer.window for layer in self.layers))
        return tuple(
            KVGroupSpec(tuple(i for i, lay in enumerate(self.layers) if lay.window == w), w)
            for w in windows
        )

    def inv_freq(self, layer: int) -> np.ndarray:
        return (100.0 * (layer + 1)) ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)

    def drive(self, ops: Ops, *, eager: bool = False, **options: Any) -> StepDriver:
        """`options` go to `StepDriver`."""
        options.setdefault("max_logprobs", self.vocab)
        options.setdefault("kv_dtype", KVDtype.F32)
        return StepDriver(
            ops,
            self._forward(ops),
            self.groups,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            eager=eager,
            **options,
        )

    def _forward(self, ops: Ops) -> Any:
        def vector(name: str) -> Any:
            return ops.pack_vector(self.values[name].astype(np.float32))

        embed = ops.pack_linear([self.tensors["embed"]])
        final = vector("final")
        packed = []
        for i, layer in enumerate(self.layers):
            spec = AttentionSpec(
                num_heads=HEADS,
                num_kv_heads=KV_HEADS,
                head_dim=HEAD_DIM,
                scale=HEAD_DIM**-0.5,
                inv_freq=self.inv_freq(i),
                rope_magnitude=1.25,
                window=layer.window,
                kv_group=next(g for g, group in enumerate(self.groups) if i in group.layers),
                q_norm=vector(f"q_norm{i}") if layer.head_norms else None,
                k_norm=vector(f"k_norm{i}") if layer.head_norms else None,
                norm_eps=EPS,
                logit_softcap=0.0,
            )
            bias = self.values[f"bias{i}"].astype(np.float32) if layer.bias else None
            linears = [
                ops.pack_linear([self.tensors[f"{n}{i}"] for n in names], b)
                for names, b in (("qkv", bias), (["output"], None), (["gate", "up"], None),
                                 (["down"], None))
            ]  # fmt: skip
            norms = [vector(f"{n}{i}") for n in ("norm", "mlp_norm")]
            posts = [
                vector(f"{n}{i}") if layer.post_norms else None
                for n in ("post_attention", "post_mlp")
            ]
            packed.append((spec, linears, norms, posts, layer.activation))

        def forward() -> None:
            x = ops.embed(embed, 1.5)
            residual, post = None, None
            for i, (spec, (qkv, output, gate_up, down), norms, posts, act) in enumerate(packed):
                x, residual = ops.norm(x, norms[0], EPS, residual=residual, post_weight=post)
                q = ops.qkv_rope_cache(ops.linear(x, qkv), spec, i)
                x = ops.linear(ops.paged_attention(q, spec, i), output)
                x, residual = ops.norm(x, norms[1], EPS, residual=residual, post_weight=posts[0])
                x = ops.gated_mlp(x, gate_up, down, act)
                post = posts[1]
            x, _ = ops.norm(x, final, EPS, residual=residual, post_weight=post)
            ops.sample(ops.logits(x, embed, self.softcap))

        return forward

    # -- the same in float64 ------------------------------------------------------------------
    def reference_logits(self, tokens: list[int]) -> np.ndarray:
        """float64 `[num_tokens, vocab]` of one sequence."""
        v = self.values
        r = v["embed"][tokens] * 1.5
        for i, layer in enumerate(self.layers):
            h = _rms(r, v[f"norm{i}"])
            y = self._attention(i, layer, h) @ v[f"output{i}"].T
            r = r + (_rms(y, v[f"post_attention{i}"]) if layer.post_norms else y)
            h = _rms(r, v[f"mlp_norm{i}"])
            gate = _activation(layer.activation, h @ v[f"gate{i}"].T)
            y = (gate * (h @ v[f"up{i}"].T)) @ v[f"down{i}"].T
            r = r + (_rms(y, v[f"post_mlp{i}"]) if layer.post_norms else y)
        logits = _rms(r, v["final"]) @ v["embed"].T
        return self.softcap * np.tanh(logits / self.softcap) if self.softcap else logits

    def _attention(self, i: int, layer: RandomLayer, h: np.ndarray) -> np.ndarray:
        v, n = self.values, len(h)
        bias = np.split(v[f"bias{i}"] * layer.bias, np.cumsum([HEADS, KV_HEADS]) * HEAD_DIM)
        q, k, val = (
            (h @ v[f"{name}{i}"].T + b).reshape(n, -1, HEAD_DIM)
            for name, b in zip("qkv", bias, strict=True)
        )
        if layer.head_norms:
            q, k = _rms(q, v[f"q_norm{i}"]), _rms(k, v[f"k_norm{i}"])
        angles = np.arange(n)[:, None] * self.inv_freq(i)
        q, k = _rotate(q, angles), _rotate(k, angles)
        k, val = (np.repeat(x, HEADS // KV_HEADS, axis=1) for x in (k, val))
        scores = np.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
        distance = np.arange(n)[:, None] - np.arange(n)
        seen = (distance >= 0) & (distance < (layer.window or n))
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, val).reshape(n, -1)


def _rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def _rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    a, b = np.split(x, 2, axis=-1)
    cos, sin = 1.25 * np.cos(angles)[:, None], 1.25 * np.sin(angles)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _activation(kind: str, x: np.ndarray) -> np.ndarray:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
