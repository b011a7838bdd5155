"""The torch operators against formulas written out in float64."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from step_driver import Chunk, SequenceState, StepDriver
from takt.errors import ConfigError, InvariantError
from takt.ops.base import AttentionSpec
from takt.ops.create import create_ops
from takt.ops.torch.ops import TorchOps
from takt.types.kv import KVDtype, KVGroupSpec
from takt.types.quant import QuantTensor, QuantType

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 8, 8
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM
TOLERANCE = 1e-5
"""fp32 against float64: values near 1, under a hundred terms in any sum."""


def f32(values: np.ndarray) -> QuantTensor:
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint8)
    return QuantTensor(raw.reshape(len(values), -1), QuantType.F32, values.shape)


def spec(**changes: Any) -> AttentionSpec:
    fields: dict[str, Any] = {
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "scale": 0.3,
        "inv_freq": 100.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM),
        "rope_magnitude": 1.0,
        "window": None,
        "kv_group": 0,
        "q_norm": None,
        "k_norm": None,
        "norm_eps": 1e-6,
        "logit_softcap": 0.0,
    }
    return AttentionSpec(**(fields | changes))


class Harness:
    """One attention layer whose qkv of a token is a row of a table; keeps what comes out."""

    def __init__(self, kv_dtype: KVDtype = KVDtype.F32, **changes: Any) -> None:
        self.ops = TorchOps()
        self.table = np.random.default_rng(1).normal(size=(40, WIDTH)).astype(np.float32)
        weight = self.ops.pack_linear([f32(self.table)])
        for name in ("q_norm", "k_norm"):
            if name in changes:
                changes[name] = self.ops.pack_vector(changes[name])
        self.attention = spec(**changes)
        self.out = np.empty(0)

        def forward() -> None:
            q = self.ops.qkv_rope_cache(self.ops.embed(weight, 1.0), self.attention, 0)
            self.out = self.ops.paged_attention(q, self.attention, 0).numpy().copy()

        self.driver = StepDriver(
            self.ops,
            forward,
            (KVGroupSpec((0,), self.attention.window),),
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            kv_dtype=kv_dtype,
            block_size=BLOCK,
            max_num_seqs=4,
        )
        assert self.ops._kv is not None
        for pool in self.ops._kv.pools[0]:
            pool.fill_(torch.nan)  # Whatever reads a slot that was not written shows.

    def run(self, *chunks: tuple[SequenceState, list[int]], **options: Any) -> np.ndarray:
        self.driver.step([Chunk(s, tokens, ()) for s, tokens in chunks], **options)
        return self.out


def expected_attention(table: np.ndarray, tokens: list[int], a: AttentionSpec) -> np.ndarray:
    """float64 `[num_tokens, heads * head_dim]`, position by position."""
    n = len(tokens)
    heads = table[tokens].astype(np.float64).reshape(n, -1, HEAD_DIM)
    q, k, v = heads[:, :HEADS], heads[:, HEADS : HEADS + KV_HEADS], heads[:, HEADS + KV_HEADS :]
    if a.q_norm is not None:
        q = q / np.sqrt((q**2).mean(-1, keepdims=True) + a.norm_eps) * a.q_norm.numpy()
    if a.k_norm is not None:
        k = k / np.sqrt((k**2).mean(-1, keepdims=True) + a.norm_eps) * a.k_norm.numpy()
    turn = np.exp(1j * np.arange(n)[:, None, None] * a.inv_freq) * a.rope_magnitude
    half = HEAD_DIM // 2
    q = (q[..., :half] + 1j * q[..., half:]) * turn
    k = (k[..., :half] + 1j * k[..., half:]) * turn
    out = np.zeros((n, HEADS, HEAD_DIM))
    for p in range(n):
        first = 0 if a.window is None else max(0, p - a.window + 1)
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            scores = (q[p, h] * k[first : p + 1, kv].conj()).real.sum(-1) * a.scale
            if a.logit_softcap:
                scores = a.logit_softcap * np.tanh(scores / a.logit_softcap)
            weights = np.exp(scores - scores.max())
            out[p, h] = weights @ v[first : p + 1, kv] / weights.sum()
    return out.reshape(n, -1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 5},
        {"window": 1},
        {"logit_softcap": 0.7},
        {"rope_magnitude": 1.3},
        {
            "q_norm": np.linspace(0.5, 1.5, HEAD_DIM, dtype=np.float32),
            "k_norm": np.linspace(1.5, 0.5, HEAD_DIM, dtype=np.float32),
        },
    ],
)
@pytest.mark.parametrize("chunk_size", [1, 6, 29])
def test_attention(changes: dict[str, Any], chunk_size: int) -> None:
    harness = Harness(**changes)
    tokens = np.random.default_rng(2).integers(0, 40, 29).tolist()
    sequence, other = harness.driver.new_sequence(), harness.driver.new_sequence()
    rows = []
    for start in range(0, len(tokens), chunk_size):
        chunk = tokens[start : start + chunk_size]
        rows.append(harness.run((other, [7, 8]), (sequence, chunk))[2:])
    expected = expected_attention(harness.table, tokens, harness.attention)
    np.testing.assert_allclose(np.concatenate(rows), expected, rtol=0, atol=TOLERANCE)


def test_attention_reads_the_rounded_cache() -> None:
    """The first token sees itself alone: its output is its value as bfloat16 holds it."""
    harness = Harness(kv_dtype=KVDtype.BF16)
    out = harness.run((harness.driver.new_sequence(), [11]))
    value = torch.from_numpy(harness.table[11, (HEADS + KV_HEADS) * HEAD_DIM :])
    expected = value.bfloat16().float().view(KV_HEADS, 1, HEAD_DIM)
    expected = expected.expand(KV_HEADS, HEADS // KV_HEADS, HEAD_DIM).reshape(1, -1)
    np.testing.assert_array_equal(out, expected.numpy())
    assert not torch.equal(expected, value.view(KV_HEADS, 1, HEAD_DIM).expand(
        KV_HEADS, HEADS // KV_HEADS, HEAD_DIM).reshape(1, -1))  # fmt: skip


def test_block_copies_come_first() -> None:
    """A sequence whose first block is a copy of another's goes on as that one would."""
    harness = Harness()
    driver = harness.driver
    source, copy = driver.new_sequence(), driver.new_sequence()
    tokens = list(range(BLOCK))
    harness.run((source, tokens))
    blocks = [int(driver._blocks[0][s.index][0]) for s in (source, copy)]
    copy.num_tokens = BLOCK
    copied = harness.run((copy, [20, 21]), block_copies=[(0, blocks[0], blocks[1])])
    np.testing.assert_array_equal(copied, harness.run((source, [20, 21])))


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("silu", lambda x: x / (1 + np.exp(-x))),
        (
            "gelu_tanh",
            lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
    ],
)
def test_gated_mlp(kind: str, act: Callable[[np.ndarray], np.ndarray]) -> None:
    rng = np.random.default_rng(3)
    x, gate, up, down = (
        rng.normal(size=shape) / 3 for shape in ((5, 16), (24, 16), (24, 16), (16, 24))
    )
    ops = TorchOps()
    packed = ops.pack_linear([f32(gate), f32(up)])
    got = ops.gated_mlp(torch.tensor(x).float(), packed, ops.pack_linear([f32(down)]), kind)
    expected = (act(x @ gate.T) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=TOLERANCE)


def test_norm_joins_the_residual_first() -> None:
    rng = np.random.default_rng(4)
    x, residual = rng.normal(size=(2, 3, 16))
    weight, post = rng.normal(size=(2, 16)).astype(np.float32)
    ops = TorchOps()

    def rms(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-3) * scale

    as_tensor = {name: torch.tensor(v).float() for name, v in (("x", x), ("residual", residual))}
    for post_weight, total in ((None, residual + x), (post, residual + rms(x, post))):
        packed = None if post_weight is None else ops.pack_vector(post_weight)
        got, summed = ops.norm(
            as_tensor["x"],
            ops.pack_vector(weight),
            1e-3,
            residual=as_tensor["residual"],
            post_weight=packed,
        )
        np.testing.assert_allclose(summed.numpy(), total, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(got.numpy(), rms(total, weight), rtol=0, atol=TOLERANCE)


def test_stacked_parts_keep_their_own_types_and_bias() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.normal(size=(3, 16)), rng.normal(size=(2, 16)).astype(np.float16)
    half = QuantTensor(second.view(np.uint8).reshape(2, -1), QuantType.F16, (2, 16))
    bias = np.arange(5, dtype=np.float32)
    ops = TorchOps()
    x = rng.normal(size=(4, 16))
    got = ops.linear(torch.tensor(x).float(), ops.pack_linear([f32(first), half], bias))
    expected = x @ np.concatenate([first, second]).T + bias
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=TOLERANCE)


def test_logits_softcap_bounds_them() -> None:
    ops = TorchOps()
    table, head = np.eye(8) * 50, np.eye(8)
    weight, packed = ops.pack_linear([f32(table)]), ops.pack_linear([f32(head)])
    seen = []

    def forward() -> None:
        seen.append(ops.logits(ops.embed(weight, 1.0), packed, 30.0).numpy())
        ops.sample(torch.from_numpy(seen[-1]))

    groups = (KVGroupSpec((0,), None),)
    driver = StepDriver(ops, forward, groups, num_kv_heads=1, head_dim=8)
    driver.step([Chunk(driver.new_sequence(), [2])])
    np.testing.assert_allclose(seen[0][0, 2], 30 * math.tanh(50 / 30), rtol=1e-6)
    assert seen[0][0, 3] == 0


def test_misuse_is_an_invariant_error() -> None:
    ops = TorchOps()
    with pytest.raises(InvariantError, match="outside of a program's run"):
        ops.embed(ops.pack_linear([f32(np.eye(4))]), 1.0)


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="'cuda' is not one of: native, torch"):
        create_ops("cuda", None)


@pytest.mark.parametrize(
    ("backend", "module", "remedy"),
    [("torch", "torch", "make install EXTRA=torch"), ("native", "takt._native", "make install")],
)
def test_missing_backend_says_what_to_install(backend: str, module: str, remedy: str) -> None:
    """In a fresh interpreter, to which the module looks uninstalled."""
    script = f"""
import sys
sys.modules[{module!r}] = None
from takt.errors import ConfigError
from takt.ops.create import create_ops
try:
    create_ops({backend!r}, None)
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert remedy in done.stdout
