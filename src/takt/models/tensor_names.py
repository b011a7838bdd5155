"""Names that the two formats give to the tensors of a decoder."""

from __future__ import annotations

import re
from dataclasses import dataclass

from takt.errors import InvariantError, ModelError
from takt.types.precision import Operator

_INDEX = re.compile(r"\.\d+\.")
_OPERATORS = {
    "q": Operator.QKV,
    "k": Operator.QKV,
    "v": Operator.QKV,
    "output": Operator.OUTPUT,
    "gate": Operator.GATE_UP,
    "up": Operator.GATE_UP,
    "down": Operator.DOWN,
}


@dataclass(frozen=True, slots=True)
class TensorNames:
    """`roles` maps the role of a layer's module to its name, with `{}` for the layer's index."""

    embedding: str
    final_norm: str
    head: str
    roles: dict[str, str]
    ignored_suffixes: tuple[str, ...]
    """Tensors that hold nothing a decoder needs."""

    def of(self, role: str, layer: int) -> str:
        return self.roles[role].format(layer)

    def operator_of(self, name: str) -> Operator:
        """Class of the operator whose weights a matrix is."""
        if name == self.embedding:
            return Operator.EMBED
        if name == self.head:
            return Operator.HEAD
        module = _INDEX.sub(".{}.", name.removesuffix(".weight"), count=1)
        for role, pattern in self.roles.items():
            if pattern == module:
                return _OPERATORS.get(role, Operator.NORM)
        raise InvariantError(f"tensor {name} has no role in a decoder")


def tensor_names(checkpoint_format: str, *, post_norms: bool) -> TensorNames:
    """Names in one format; a model with norms after its blocks calls them differently."""
    if checkpoint_format == "gguf":
        return _GGUF
    if checkpoint_format == "safetensors":
        return _HF_POST_NORMS if post_norms else _HF
    raise ModelError(f"format {checkpoint_format!r} is not known; known are: gguf, safetensors")


_GGUF = TensorNames(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    head="output.weight",
    roles={
        "input_norm": "blk.{}.attn_norm",
        "q": "blk.{}.attn_q",
        "k": "blk.{}.attn_k",
        "v": "blk.{}.attn_v",
        "q_norm": "blk.{}.attn_q_norm",
        "k_norm": "blk.{}.attn_k_norm",
        "output": "blk.{}.attn_output",
        "post_attention_norm": "blk.{}.post_attention_norm",
        "mlp_norm": "blk.{}.ffn_norm",
        "gate": "blk.{}.ffn_gate",
        "up": "blk.{}.ffn_up",
        "down": "blk.{}.ffn_down",
        "post_mlp_norm": "blk.{}.post_ffw_norm",
    },
    ignored_suffixes=(),
)

_HF_ROLES = {
    "input_norm": "model.layers.{}.input_layernorm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "q_norm": "model.layers.{}.self_attn.q_norm",
    "k_norm": "model.layers.{}.self_attn.k_norm",
    "output": "model.layers.{}.self_attn.o_proj",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}

_HF = TensorNames(
    embedding="model.embed_tokens.weight",
    final_norm="model.norm.weight",
    head="lm_head.weight",
    roles=_HF_ROLES,
    # Older conversions saved the frequencies of rope, which follow from the configuration.
    ignored_suffixes=(".rotary_emb.inv_freq",),
)

_HF_POST_NORMS = TensorNames(
    embedding=_HF.embedding,
    final_norm=_HF.final_norm,
    head=_HF.head,
    roles=_HF_ROLES
    | {
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
        "post_mlp_norm": "model.layers.{}.post_feedforward_layernorm",
    },
    ignored_suffixes=_HF.ignored_suffixes,
)
