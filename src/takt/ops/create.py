"""Chooses an implementation of `Ops` by name and imports only that one."""

from __future__ import annotations

import os

from takt.errors import ConfigError
from takt.ops.base import Ops


def create_ops(
    backend: str,
    num_threads: int | None,
    *,
    num_peers: int = 0,
    prompts_are_bf16: bool = False,
) -> Ops:
    """`backend` is `native` or `torch`; `num_threads` None leaves the choice to it.

    `num_peers` other processes share this one's CPUs alike. `prompts_are_bf16` is of `native`,
    which otherwise takes all tokens as int8 where weights are quantised.

    Raises `ConfigError` if the backend is unknown or not installed, saying what to do.
    """
    if backend == "native":
        return _create_native(num_threads, num_peers, prompts_are_bf16)
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


def _create_native(num_threads: int | None, num_peers: int, prompts_are_bf16: bool) -> Ops:
    from takt.ops.native.ops import NativeOps

    return NativeOps(num_threads, num_peers, prompts_are_bf16=prompts_are_bf16)


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
