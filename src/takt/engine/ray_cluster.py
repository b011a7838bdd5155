"""Meeting a Ray cluster: the one that runs, or one that this process starts for itself."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from takt.errors import ConfigError

RANK_RESOURCE = "takt_rank"
"""A node offers as many as it takes ranks: `ray start --resources '{"takt_rank": 2}'`."""

_OBJECT_STORE_BYTES = 80 << 20
"""Near the least that Ray takes: nothing is kept there."""
_REACH_SECONDS = 5.0
_LOCAL, _HERE = "local", "auto"

# Read by Ray when it is imported, and by the processes that it starts.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def join_cluster(num_ranks: int) -> tuple[Any, bool]:
    """Connects to the cluster that $RAY_ADDRESS names or `ray start` made here, or starts one.

    Returns the module, and whether this process has connected, and is to disconnect. Raises
    `ConfigError` where Ray is not installed, or a cluster that was asked for cannot be used.
    """
    if "ray" in sys.modules and (ray := import_ray()).is_initialized():
        return ray, False
    address = _address()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == _LOCAL:
        _keep_strangers_out()
        options |= {
            "num_cpus": 0,
            "num_gpus": 0,
            "resources": {RANK_RESOURCE: num_ranks},
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    ray = import_ray()
    with _own_signals():
        try:
            ray.init(address=address, **options)
        except Exception as error:
            raise ConfigError(f"Ray at {address} cannot be used: {_reason(error)}") from error
    return ray, True


def import_ray() -> Any:
    """The module; raises `ConfigError` that says how to install it."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError(
            "--distributed-executor-backend ray needs Ray, which is not installed; run "
            "`make install EXTRA=ray`"
        ) from None


def _address() -> str:
    asked = os.environ.get("RAY_ADDRESS", "")
    if asked in ("", _HERE):
        if _runs_here():
            return _HERE
        if asked == _HERE:
            raise ConfigError(
                "RAY_ADDRESS is auto, but no Ray runs on this host: `ray start` it here"
            )
        return _LOCAL
    if "://" in asked:
        raise ConfigError(
            f"RAY_ADDRESS {asked} goes through Ray Client: the engine must itself be on a node "
            "of the cluster; give the node's host:port"
        )
    if asked != _LOCAL and not _is_reachable(asked):
        raise ConfigError(f"RAY_ADDRESS {asked} cannot be reached: no Ray runs there")
    return asked


def _keep_strangers_out() -> None:
    """A private Ray takes commands only with a secret of its own, which no file keeps."""
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _reason(error: Exception) -> str:
    text = str(error)
    if "Unauthenticated" in text:
        return "it asks for a token: set RAY_AUTH_MODE=token, and have the cluster's token here"
    return text.strip().partition("\n")[0]


def _runs_here() -> bool:
    """Whether the cluster of this host's last `ray start` still runs."""
    directory = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
    try:
        address = (directory / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return False
    return _is_reachable(address)


def _is_reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return False
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray's processes begin with a SIGTERM that ends them, and Ray leaves ours as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
