"""`TorchOps`: every operator of `takt.ops.base.Ops`, eager and plain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from takt.errors import InvariantError, ModelError
from takt.loading.convert import converted
from takt.loading.dequantize import dequantize
from takt.ops.base import AttentionSpec
from takt.ops.torch.attention import KVPools, attend, rotate
from takt.ops.torch.sampling import sample_rows
from takt.parallel.links import RankLinks
from takt.types.kv import KVCacheSpec
from takt.types.quant import QuantTensor
from takt.types.step import StepInput, StepLimits, StepOutput


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """fp32 `[num_rows, num_columns]` and, if there is one, bias `[num_rows]`."""

    matrix: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.matrix, self.bias)


class TorchOps:
    """Activations are fp32 tensors `[num_tokens, width]`; K and V are rounded to the cache's type.

    `num_threads` sets torch's own number of threads, which is the process's.
    """

    def __init__(self, device: str = "cpu", num_threads: int | None = None) -> None:
        self.device = torch.device(device)
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.num_threads = torch.get_num_threads()
        self.weight_bytes = 0
        self.spin_ns = 0
        self._kv: KVPools | None = None
        self._links = RankLinks()
        self._step: StepInput | None = None
        self._output: StepOutput | None = None

    # -- once, while loading ------------------------------------------------------------------

    def pack_linear(
        self, parts: Sequence[QuantTensor], bias: np.ndarray | None = None
    ) -> TorchLinear:
        try:
            matrix = torch.cat([self._tensor(dequantize(converted(part))) for part in parts])
        except ValueError as error:
            names = " and ".join(filter(None, (part.name for part in parts))) or "weights"
            raise ModelError(f"{names} cannot be packed: {error}") from error
        return TorchLinear(matrix, None if bias is None else self._tensor(bias))

    def pack_vector(self, values: np.ndarray) -> torch.Tensor:
        return self._tensor(values)

    def allocate_kv(self, spec: KVCacheSpec, num_blocks: Sequence[int]) -> None:
        self._kv = KVPools(spec, num_blocks, self.device)

    def program(
        self, forward: Callable[[], None], limits: StepLimits, *, max_position: int, eager: bool
    ) -> TorchProgram:
        """A program that calls `forward` at each step, `eager` or not."""
        return TorchProgram(self, forward)

    def close(self) -> None:
        """Gives the KV pools back."""
        self._kv = None

    # -- inside `forward` ---------------------------------------------------------------------

    def embed(
        self,
        table: TorchLinear,
        scale: float,
        *,
        first_token: int = 0,
        vocab_size: int | None = None,
    ) -> torch.Tensor:
        step = self._current_step()
        rows = self._indices(step["token_ids"][: step.num_tokens]) - first_token
        num_rows = table.matrix.shape[0]
        is_here = (rows >= 0) & (rows < num_rows)
        return table.matrix[rows.clamp(0, num_rows - 1)] * scale * is_here[:, None]

    def norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        residual: torch.Tensor | None = None,
        post_weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = x if post_weight is None else rms_norm(x, post_weight, eps)
        total = y if residual is None else residual + y
        return rms_norm(total, weight, eps), total

    def linear(self, x: torch.Tensor, weight: TorchLinear) -> torch.Tensor:
        return weight(x)

    def qkv_rope_cache(
        self, qkv: torch.Tensor, attention: AttentionSpec, layer: int
    ) -> torch.Tensor:
        step = self._current_step()
        heads = qkv.view(qkv.shape[0], -1, attention.head_dim)
        first_k = attention.num_heads
        first_v = first_k + attention.num_kv_heads
        q, k, v = heads[:, :first_k], heads[:, first_k:first_v], heads[:, first_v:]
        if attention.q_norm is not None:
            q = rms_norm(q, attention.q_norm, attention.norm_eps)
        if attention.k_norm is not None:
            k = rms_norm(k, attention.k_norm, attention.norm_eps)
        positions = step["positions"][: step.num_tokens]
        slots = step["slot_mapping"][attention.kv_group, : step.num_tokens]
        k = rotate(k, positions, attention)
        self._pools().store(layer, self._indices(slots), k, v)
        return rotate(q, positions, attention).flatten(1)

    def paged_attention(
        self, q: torch.Tensor, attention: AttentionSpec, layer: int
    ) -> torch.Tensor:
        step = self._current_step()
        heads = q.view(-1, attention.num_heads, attention.head_dim)
        out = torch.empty_like(heads)
        for s in range(step.num_seqs):
            first_row, last_row = (int(i) for i in step["query_start"][s : s + 2])
            if first_row == last_row:
                continue
            positions = self._indices(step["positions"][first_row:last_row])
            first = 0
            if attention.window is not None:
                first = max(0, int(positions[0]) - attention.window + 1)
            table = self._indices(step["block_tables"][attention.kv_group, s])
            pools = self._pools()
            kv = pools.gather(layer, table, first, int(step["seq_lens"][s]))
            out[first_row:last_row] = attend(
                heads[first_row:last_row], kv, positions, first, attention, pools.spec.dtype
            )
        return out.flatten(1)

    def gated_mlp(
        self, x: torch.Tensor, gate_up: TorchLinear, down: TorchLinear, kind: str
    ) -> torch.Tensor:
        gate, up = gate_up(x).chunk(2, dim=-1)
        if kind == "silu":
            gate = functional.silu(gate)
        elif kind == "gelu_tanh":
            gate = functional.gelu(gate, approximate="tanh")
        else:
            raise InvariantError(f"gate {kind!r} is none of: silu, gelu_tanh")
        return down(gate * up)

    def logits(self, x: torch.Tensor, head: TorchLinear, softcap: float) -> torch.Tensor:
        step = self._current_step()
        values = head(x[self._indices(step["row_tokens"][: step.num_rows])])
        return torch.tanh(values / softcap) * softcap if softcap > 0.0 else values

    def sample(self, logits: torch.Tensor | None) -> None:
        if logits is None:
            return  # the first rank of the group samples
        if self._output is None:
            raise InvariantError("sample was called outside of a program's run")
        sample_rows(logits.cpu().numpy(), self._current_step(), self._output)

    # -- between ranks ------------------------------------------------------------------------

    def connect(self, links: RankLinks) -> None:
        self._links = links

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        values = x.cpu().numpy().reshape(-1).copy()
        self._links.group.all_reduce(values)
        return self._tensor(values).view(x.shape)

    def gather(self, logits: torch.Tensor, borders: Sequence[int]) -> torch.Tensor | None:
        group = self._links.group
        sizes = np.diff(borders)
        padded = np.zeros(sizes.max(), dtype=np.float32)
        parts = np.empty((len(sizes), len(padded)), dtype=np.float32)
        rows = []
        for row in logits.cpu().numpy():
            padded[: len(row)] = row
            group.gather(padded, parts.reshape(-1))
            rows.append(
                np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])
            )
        if group.rank != 0:
            return None
        return self._tensor(np.array(rows, dtype=np.float32).reshape(len(rows), borders[-1]))

    def send(self, x: torch.Tensor) -> None:
        self._links.next.send(x.cpu().numpy().reshape(-1))

    def receive(self, width: int) -> torch.Tensor:
        values = np.empty(self._current_step().num_tokens * width, dtype=np.float32)
        self._links.previous.receive(values)
        return self._tensor(values).view(-1, width)

    # -- of a program's run -------------------------------------------------------------------

    def run(self, forward: Callable[[], None], step: StepInput, output: StepOutput) -> None:
        """Block copies first, then `forward`."""
        self._step, self._output = step, output
        try:
            for group, source, destination in step["block_copies"][: step.num_block_copies]:
                self._pools().copy_block(int(group), int(source), int(destination))
            if step.num_tokens:
                forward()
        finally:
            self._step, self._output = None, None

    def _current_step(self) -> StepInput:
        if self._step is None:
            raise InvariantError("an operator was called outside of a program's run")
        return self._step

    def _pools(self) -> KVPools:
        if self._kv is None:
            raise InvariantError("an operator needs the KV pools before allocate_kv made them")
        return self._kv

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def _indices(self, values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


class TorchProgram:
    def __init__(self, ops: TorchOps, forward: Callable[[], None]) -> None:
        self._ops = ops
        self._forward = forward

    def run(self, step: StepInput, output: StepOutput) -> None:
        header = output["header"]
        header[:] = 0
        header[0], header[1] = step["header"][0], time.monotonic_ns()
        with torch.inference_mode():
            self._ops.run(self._forward, step, output)
        header[2], header[3] = time.monotonic_ns(), step.num_rows


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Along the last dimension: `x / sqrt(mean(x ** 2) + eps) * weight`."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight
