"""Chooses an implementation of `Ops` by name and imports only that one."""

from __future__ import annotations

import os

from takt.errors import ConfigError
from takt.ops.base import Ops
from takt.types.precision import Int8Tokens


def create_ops(
    backend: str,
    num_threads: int | None,
    *,
    num_peers: int = 0,
    int8_tokens: Int8Tokens = Int8Tokens.ALL,
) -> Ops:
    """`backend` is `native` or `torch`; `num_threads` None leaves the choice to it.

    `num_peers` other processes share this one's CPUs alike. `int8_tokens` is of `native`.

    Raises `ConfigError` if the backend is unknown or not installed, saying what to do.
    """
    if backend == "native":
        return _create_native(num_threads, num_peers, int8_tokens)
    if backend == "torch":
        return _create_torch(num_threads)
    raise ConfigError(f"--backend {backend!r} is not one of: native, torch")


def num_usable_cpus() -> int:
    """CPUs of this process, or fewer where a cgroup's quota allows fewer."""
    try:
        from takt import _native
    except ImportError:
        return len(os.sched_getaffinity(0))
    return _native.num_usable_cpus()


def has_matrix_unit() -> bool:
    """Whether native products with bf16 run on a matrix unit of this CPU."""
    try:
        from takt import _native
    except ImportError:
        return False
    return _native.selected_isa() == "amx"


def usual_int8_tokens() -> Int8Tokens:
    """What this machine computes fastest with a single stream."""
    return Int8Tokens.GENERATED if has_matrix_unit() else Int8Tokens.ALL


def _create_native(num_threads: int | None, num_peers: int, int8_tokens: Int8Tokens) -> Ops:
    from takt.ops.native.ops import NativeOps

    return NativeOps(num_threads, num_peers, int8_tokens=int8_tokens)


def _create_torch(num_threads: int | None) -> Ops:
    try:
        from takt.ops.torch.ops import TorchOps
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            "--backend torch needs PyTorch, which is not installed; run `make install EXTRA=torch`"
        ) from error
    return TorchOps(num_threads=num_threads)
