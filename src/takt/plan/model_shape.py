"""What of a model a plan depends on: its matrices, its KV, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes. With `num_experts` > 0 each token takes `num_active_experts` MLPs."""

    name: str
    repository: str
    """What a server is told to load."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    is_tied: bool = False
    num_experts: int = 0
    num_active_experts: int = 0
    windows: tuple[int | None, ...] = ()
    """Per layer, positions a token sees; empty is full attention everywhere."""
    file_block_bytes: float | None = None
    """Bytes of the blocks' weights as a file has them packed; None if the type decides."""
    file_head_bytes: float | None = None

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention."""
        query = self.num_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        return self.hidden_size * (2 * query + 2 * kv)

    @property
    def mlp_params(self) -> int:
        """Weights of one MLP: gate, up and down."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def block_params(self) -> int:
        """Weights of all layers, all experts and routers included."""
        experts = max(1, self.num_experts)
        router = self.hidden_size * self.num_experts
        return self.num_layers * (self.attention_params + experts * self.mlp_params + router)

    @property
    def active_block_params(self) -> int:
        """Weights that one token is multiplied by."""
        experts = self.num_active_experts if self.num_experts else 1
        return self.num_layers * (self.attention_params + experts * self.mlp_params)

    @property
    def head_params(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        embeddings = self.head_params * (1 if self.is_tied else 2)
        return self.block_params + embeddings

    @property
    def kv_elements_per_token(self) -> int:
        """K and V of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def kv_tokens_seen(self, num_kv_tokens: float, num_seqs: float) -> float:
        """KV tokens read per layer, averaged over layers with and without windows.

        `num_kv_tokens` is the sum of `num_seqs` contexts, taken to be equally long.
        """
        if not self.windows:
            return num_kv_tokens
        seen = sum(
            num_kv_tokens if window is None else min(num_kv_tokens, num_seqs * window)
            for window in self.windows
        )
        return seen / len(self.windows)

    def distinct_experts(self, num_tokens: float) -> float:
        """Expected number of a layer's experts that some of `num_tokens` tokens choose.

        Choices are taken to be uniform and independent: E (1 - (1 - k/E)^n).
        """
        if not self.num_experts:
            return 1.0
        share = self.num_active_experts / self.num_experts
        missed: float = (1 - share) ** max(num_tokens, 1.0)
        return self.num_experts * (1 - missed)

    def block_bytes(self, weight_bytes: float | None) -> float:
        """Bytes of all layers' weights; None is as the file packs them, 16 bits without one."""
        if weight_bytes is None:
            return (
                2.0 * self.block_params if self.file_block_bytes is None else self.file_block_bytes
            )
        return self.block_params * weight_bytes

    def head_bytes(self, element_bytes: float | None) -> float:
        if element_bytes is None:
            element_bytes = 2.0
            if self.file_head_bytes is not None:
                return self.file_head_bytes
        return self.head_params * element_bytes

    def prefill_flops(self, num_tokens: int) -> float:
        """Two operations per weight and token, causal attention, and one row of the head."""
        attention = 2 * self.num_layers * self.num_heads * self.head_dim * num_tokens**2
        return 2.0 * self.active_block_params * num_tokens + attention + 2.0 * self.head_params

    def decode_flops(self, context: float) -> float:
        """Operations of one token that attends to `context` positions."""
        attention = 4.0 * self.num_layers * self.num_heads * self.head_dim * context
        return 2.0 * self.active_block_params + attention + 2.0 * self.head_params
