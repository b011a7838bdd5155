"""What the engine core and its rank processes say to each other before the first step.

Steps themselves go through shared memory. Each rank has a socket pair; one message is one packet.
"""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

import msgspec

from takt.engine.sizing import EngineSizes
from takt.types.kv import KVCacheSpec, KVDtype, KVGroupSpec
from takt.types.step import StepLimits

MAX_PACKET_BYTES = 1 << 16


class RankOrder(msgspec.Struct, frozen=True, tag="order"):
    """The first message to a rank. `path` is the model's file or directory."""

    rank: int
    path: str
    num_threads: int
    log_level: int
    config: dict[str, dict[str, Any]]
    cpus: list[int] = []
    """Those that the rank has for itself; none if it is not pinned."""


class RankSizes(msgspec.Struct, frozen=True, tag="sizes"):
    """The second; the file of the shared memory comes with it. KV heads are the model's."""

    limits: StepLimits
    num_blocks: list[int]
    max_position: int
    kv_groups: list[tuple[list[int], int | None]]
    """Layers and window."""
    num_kv_heads: int
    head_dim: int
    block_size: int
    kv_dtype: str
    all_reduce_dtype: str

    @staticmethod
    def of(sizes: EngineSizes, all_reduce_dtype: str) -> RankSizes:
        kv = sizes.kv
        return RankSizes(
            limits=sizes.limits,
            num_blocks=list(sizes.num_blocks_in_memory),
            max_position=sizes.max_model_len,
            kv_groups=[(list(group.layers), group.window) for group in kv.groups],
            num_kv_heads=kv.num_kv_heads,
            head_dim=kv.head_dim,
            block_size=kv.block_size,
            kv_dtype=kv.dtype.name,
            all_reduce_dtype=all_reduce_dtype,
        )

    def kv_spec(self) -> KVCacheSpec:
        groups = tuple(KVGroupSpec(tuple(layers), window) for layers, window in self.kv_groups)
        return KVCacheSpec(
            groups, self.num_kv_heads, self.head_dim, self.block_size, KVDtype[self.kv_dtype]
        )


class RankLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A rank's first answer: its weights are in memory.

    `precision` is the policy and what it gave; `available_bytes` is what its host has left. Both
    are told by ranks that the engine does not share a host with.
    """

    num_bytes_read: int
    weight_bytes: int
    precision: str = ""
    available_bytes: int = 0


class RankReady(msgspec.Struct, frozen=True, tag="ready"):
    """Its second: it waits for steps."""


class RankFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Instead of either: a sentence fit to be shown, and the program's exit code."""

    message: str
    exit_code: int


RankMessage = RankOrder | RankSizes | RankLoaded | RankReady | RankFailed

_decoder = msgspec.msgpack.Decoder(RankMessage)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return ours, theirs


def send(connection: socket.socket, message: RankMessage, fd: int | None = None) -> None:
    """Sends a message, and with it a file descriptor."""
    payload = msgspec.msgpack.encode(message, enc_hook=_plain)
    socket.send_fds(connection, [payload], [] if fd is None else [fd])


def receive(connection: socket.socket) -> tuple[RankMessage | None, int | None]:
    """The next message and the descriptor that came with it; None at the end."""
    payload, fds, _, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, 1)
    if not payload:
        return None, None
    return _decoder.decode(payload), fds[0] if fds else None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value)} cannot be sent")
