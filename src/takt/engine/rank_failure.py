"""How a rank that cannot start says so."""

from __future__ import annotations

import logging
from typing import NoReturn

from takt.engine.rank_wire import RankFailed
from takt.errors import ConfigError, ModelError, TaktError

_log = logging.getLogger("takt.engine.rank")


def rank_failed(rank: int, error: Exception) -> RankFailed:
    """A sentence fit to be shown; the trace of what nobody foresaw goes to the log."""
    if isinstance(error, TaktError):
        return RankFailed(str(error), 2 if isinstance(error, ConfigError) else 1)
    if isinstance(error, MemoryError):
        return RankFailed("there is not enough memory for the model", 1)
    _log.error("rank %d could not start", rank, exc_info=error)
    return RankFailed(f"rank {rank} could not start: {type(error).__name__}: {error}", 1)


def raise_failure(failure: RankFailed) -> NoReturn:
    """Raises in the engine what failed in a rank."""
    kind: type[TaktError] = ConfigError if failure.exit_code == 2 else ModelError
    raise kind(failure.message)
