"""How engine and client meet: a private directory, one socket per epoch, MessagePack in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import zmq

from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine.messages import CommandMessage, EngineEvent
from takt.engine.placement import Placement


class LaunchOrder(msgspec.Struct, frozen=True):
    """What a new engine process reads first: written to `order_path` by the client."""

    epoch: int
    parent_pid: int
    log_level: int
    config: dict[str, dict[str, Any]]
    placement: Placement | None = None
    """Which CPUs the server leaves to the engine; None where they share all."""
    cpus: tuple[int, ...] | None = None
    """Without a placement, CPUs that the engine keeps to; None: it may use any."""


def order_path(directory: Path, epoch: int) -> Path:
    return directory / f"engine-{epoch}.order"


def address(directory: Path, epoch: int) -> str:
    """The client binds it and the engine connects, so that a late message finds no reader."""
    return f"ipc://{directory}/engine-{epoch}.sock"


def pair_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Unbounded: what may be under way is bounded by the requests that the client lets in."""
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.linger = 0
    return socket


def config_to_plain(config: EngineConfig) -> dict[str, dict[str, Any]]:
    return dataclasses.asdict(config)


def config_from_plain(plain: dict[str, dict[str, Any]]) -> EngineConfig:
    return EngineConfig(
        model=ModelConfigOptions(**plain["model"]),
        cache=CacheOptions(**plain["cache"]),
        scheduler=SchedulerOptions(**plain["scheduler"]),
        parallel=ParallelOptions(**plain["parallel"]),
    )


def command_decoder() -> msgspec.msgpack.Decoder[CommandMessage]:
    return msgspec.msgpack.Decoder(CommandMessage)


def event_decoder() -> msgspec.msgpack.Decoder[EngineEvent]:
    return msgspec.msgpack.Decoder(EngineEvent)
