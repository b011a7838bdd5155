"""Meeting a Ray cluster: the one that runs, or one that this process starts for itself."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
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
_LOCAL = "local"

# Read by Ray when it is imported, and by the processes that it starts.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


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


def join_cluster(ray: Any, num_ranks: int) -> bool:
    """Connects to the cluster that $RAY_ADDRESS names or `ray start` made here, or starts one.

    True if this process has connected, and is to disconnect. Raises `ConfigError` where a cluster
    that was asked for cannot be used.
    """
    if ray.is_initialized():
        return False
    asked = os.environ.get("RAY_ADDRESS", "")
    address = _started_here() if asked in ("", "auto") else asked
    if asked == "auto" and address is None:
        raise ConfigError("RAY_ADDRESS is auto, but no Ray runs on this host: `ray start` it here")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address in (None, _LOCAL):
        address = _LOCAL
        options |= {
            "num_cpus": 0,
            "num_gpus": 0,
            "resources": {RANK_RESOURCE: num_ranks},
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    elif "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS {address} goes through Ray Client: the engine must itself be on a node "
            "of the cluster; give the node's host:port"
        )
    elif not _is_reachable(address):
        raise ConfigError(f"RAY_ADDRESS {address} cannot be reached: no Ray runs there")
    with _own_signals():
        try:
            ray.init(address=address, **options)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"Ray at {address} cannot be used: {reason}") from error
    return True


def _started_here() -> str | None:
    """The cluster of this host's last `ray start`, if it still runs."""
    directory = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
    try:
        address = (directory / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return None
    return address if address and _is_reachable(address) else None


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
