"""A rank's process: loads its shard, then runs the steps that it finds in shared memory.

Started as `python -m takt.engine.rank_process FD` by `RankProcesses`; FD is its socket.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from takt.engine.rank_failure import rank_failed
from takt.engine.rank_model import RankModel, RankProgram
from takt.engine.rank_pinning import pin
from takt.engine.rank_wire import (
    RankLoaded,
    RankOrder,
    RankReady,
    RankSizes,
    receive,
    send,
)
from takt.engine.wire import config_from_plain
from takt.errors import EngineDeadError
from takt.parallel.segment import Segment

_log = logging.getLogger("takt.engine.rank")


def main(arguments: list[str]) -> int:
    """Runs a rank to its end and returns the exit code."""
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the server decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return _run(arguments)
    except ConnectionError:
        return 0  # the engine is gone, and nobody is left to be told


def _run(arguments: list[str]) -> int:
    connection = socket.socket(fileno=int(arguments[0]))
    order, _ = receive(connection)
    if not isinstance(order, RankOrder):
        return 1
    logging.basicConfig(level=order.log_level, format="%(levelname)s %(name)s: %(message)s")
    try:
        program = _start(connection, order)
    except ConnectionError:
        raise
    except Exception as error:
        failure = rank_failed(order.rank, error)
        send(connection, failure)
        return failure.exit_code
    if program is None:
        return 0
    return _serve(connection, order.rank, program)


def _start(connection: socket.socket, order: RankOrder) -> RankProgram | None:
    """None if the engine ended meanwhile."""
    # Before anything is loaded: memory lies on the node of the thread that touches it first.
    num_peers = 0 if pin(order.cpus) else None
    config, path = config_from_plain(order.config), Path(order.path)
    model = RankModel(config, path, order.rank, order.num_threads, num_peers=num_peers)
    send(connection, RankLoaded(model.num_bytes_read, model.weight_bytes))
    sizes, fd = receive(connection)
    if not isinstance(sizes, RankSizes) or fd is None:
        return None
    segment = Segment(model.segment_plan(sizes), fd)
    os.close(fd)
    return model.bind(sizes, segment)


def _serve(connection: socket.socket, rank: int, program: RankProgram) -> int:
    # What loading left lives as long as the process: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    watcher = threading.Thread(target=_end_with_engine, args=(connection,), daemon=True)
    watcher.start()
    send(connection, RankReady())
    try:
        program.serve()
    except EngineDeadError as error:
        _log.debug("rank %d ends: %s", rank, error)
    except Exception:
        _log.exception("rank %d died", rank)
        return 1
    return 0


def _end_with_engine(connection: socket.socket) -> None:
    """The engine says nothing more: when the socket ends, it is gone, whatever this rank does."""
    while connection.recv(1):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
