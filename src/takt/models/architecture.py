"""What distinguishes one decoder from another, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from takt.models.rope import RopeConfig
from takt.types.kv import KVGroupSpec


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """`window` is the number of positions a token sees, itself included; None is all."""

    window: int | None
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer: pre-norm, grouped-query attention with rope, gated MLP."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """Longest context the model was made for, in tokens."""
    norm_eps: float
    norm_offset: float
    """Added to stored norm weights: 1.0 where a file keeps them around zero."""
    activation: str
    """`silu` or `gelu_tanh`, of the gate."""
    attention_scale: float
    attention_softcap: float
    """Bound of attention scores by tanh; 0.0 is off. Likewise `logit_softcap` of the logits."""
    logit_softcap: float
    scale_embedding: bool
    """Embeddings are multiplied by the square root of `hidden_size`."""
    qk_norm: bool
    """Queries and keys are normalised per head before rope."""
    post_norms: bool
    """The outputs of attention and MLP are normalised before they join the residual."""
    qk_interleaved: bool
    """The file orders the rows of Q and K for rope of neighbouring pairs."""
    qkv_bias: bool | None
    """None: the checkpoint's tensors tell. Likewise `output_bias` (attention's) and `mlp_bias`."""
    output_bias: bool | None
    mlp_bias: bool | None
    tie_word_embeddings: bool
    layers: tuple[LayerConfig, ...]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """Layers by the window they share, full attention first, then by rising window."""
        windows = sorted({layer.window for layer in self.layers}, key=lambda w: (w is not None, w))
        return tuple(
            KVGroupSpec(
                tuple(i for i, layer in enumerate(self.layers) if layer.window == window), window
            )
            for window in windows
        )


def uniform_layers(num_layers: int, rope: RopeConfig) -> tuple[LayerConfig, ...]:
    """Full attention everywhere, one rope."""
    return tuple(LayerConfig(None, rope) for _ in range(num_layers))


def windowed_layers(
    sliding: Sequence[bool], window: int | None, rope: RopeConfig, sliding_rope: RopeConfig
) -> tuple[LayerConfig, ...]:
    """`sliding[i]` tells whether layer i sees `window` positions only."""
    return tuple(
        LayerConfig(window, sliding_rope) if is_sliding else LayerConfig(None, rope)
        for is_sliding in sliding
    )
