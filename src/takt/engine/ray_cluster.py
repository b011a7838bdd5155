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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takt.errors import ConfigError

_log = logging.getLogger(__name__)

RANK_RESOURCE = "takt_rank"
"""A node offers as many as it takes ranks: `ray start --resources '{"takt_rank": 2}'`."""

_OBJECT_STORE_BYTES = 80 << 20
"""Near the least that Ray takes: nothing is kept there."""
_REACH_SECONDS = 5.0
_LOCAL, _HERE = "local", "auto"

# Read by Ray when it is imported, and by the processes that it starts.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@dataclass(frozen=True, slots=True)
class Cluster:
    ray: Any
    """The module."""
    is_ours_to_leave: bool = False
    """Whether this process has connected for the engine, and is to disconnect after it."""
    is_private: bool = False
    """Whether it is of this engine alone."""


def join_cluster(num_ranks: int) -> Cluster:
    """Connects to the cluster that $RAY_ADDRESS names or `ray start` made here, or starts one.

    Raises `ConfigError` where Ray is not installed, or a cluster that was asked for cannot be used.
    """
    if "ray" in sys.modules and (ray := import_ray()).is_initialized():
        return Cluster(ray)
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
    _log_what_ray_says()
    with _own_signals():
        try:
            ray.init(address=address, **options)
        except Exception as error:
            raise ConfigError(f"Ray at {address} cannot be used: {_reason(error)}") from error
    return Cluster(ray, is_ours_to_leave=True, is_private=address == _LOCAL)


def _log_what_ray_says() -> None:
    """Ray prints what becomes of nodes to stdout, which is not ours to write to; no option of its
    own says otherwise."""
    worker: Any = importlib.import_module("ray._private.worker")

    def log(data: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for text in data["lines"]:
            _log.warning("Ray: %s", " ".join(str(text).split()))

    worker.print_to_stdstream = log


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
