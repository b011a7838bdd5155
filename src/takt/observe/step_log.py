"""Steps as lines of a file: what an engine did and when, for others to read while it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from takt.errors import ConfigError

_log = logging.getLogger(__name__)

FLUSH_NS = 500_000_000
"""A line is in the file after this time and the next step, or when the log is closed."""


class LoggedStep(msgspec.Struct, frozen=True, gc=False):
    """One step: stamps of the engine's monotonic clock, sizes, and what is left after it."""

    step_id: int
    schedule_start_ns: int
    run_start_ns: int
    run_end_ns: int
    update_end_ns: int
    num_decode_seqs: int
    num_prefill_tokens: int
    num_kv_tokens_read: int
    num_qk_pairs: int
    num_running: int
    num_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    num_preempted: int
    pipeline_depth: int = 1
    kv_unwritten_permille: int = 0


_FIELDS = LoggedStep.__struct_fields__
_LINE = ("{" + ",".join(f'"{name}":%d' for name in _FIELDS) + "}\n").encode()


class StepLog:
    """Appends steps to a file. The file belongs to one server: what it held before goes.

    A file that takes no more, as on a full disk, ends the log and nothing else.
    """

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the file cannot be written."""
        try:
            self._file: BinaryIO | None = path.open("wb")
        except OSError as error:
            raise ConfigError(f"--step-log {path}: {error.strerror}") from None
        self._path = path
        self._flushed_ns = 0

    def add(self, step: object) -> None:
        """`step` has the fields of `LoggedStep`; one a step, in some microseconds."""
        if self._file is None:
            return
        try:
            self._file.write(_LINE % tuple([getattr(step, name) for name in _FIELDS]))
            now_ns: int = step.update_end_ns  # type: ignore[attr-defined]
            if now_ns - self._flushed_ns > FLUSH_NS:
                self._flushed_ns = now_ns
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.error("--step-log %s ends here: %s", self._path, error.strerror)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()  # it tries once more to write what it holds


def read_step_log(path: Path) -> list[LoggedStep]:
    """The whole lines of a log, oldest first. Raises `ConfigError` for a file that is none."""
    return list(_steps(path))


def _steps(path: Path) -> Iterator[LoggedStep]:
    decoder = msgspec.json.Decoder(LoggedStep)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return  # the writer has not come to its end
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
