"""Whether `takt._native` was built from the sources beside this package, if there are any.

A module that is older than its Python fails in ways that say nothing of the cause, or gives other
numbers; an installed package has no sources, and its module and Python are of one build.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from takt.errors import ConfigError

_SOURCES = Path(__file__).parents[4] / "native"
_NOT_THE_MODULES = ("tests", "benchmarks")


def check_module(sources: Path = _SOURCES) -> None:
    """Raises `ConfigError` if the module cannot be loaded, or was built from other sources."""
    try:
        from takt import _native
    except ImportError as error:
        raise ConfigError(
            f"the native module takt._native cannot be loaded ({error}); run `make install` "
            "(it needs g++), or use --backend torch with one rank"
        ) from error
    if not (sources / "bindings.cc").exists():
        return
    if getattr(_native, "source_stamp", None) != source_stamp(sources):
        raise ConfigError(
            f"the native module takt._native was not built from the sources in {sources}: "
            "run `make install`"
        )


def source_stamp(sources: Path) -> str:
    """SHA-256 over the names and contents of the module's sources, as `source_stamp.cmake`'s."""
    files = [
        path
        for pattern in ("*.cc", "*.h")
        for path in sources.rglob(pattern)
        if path.relative_to(sources).parts[0] not in _NOT_THE_MODULES
    ]
    names = {path.relative_to(sources).as_posix(): path for path in files}
    lines = [
        f"{name} {hashlib.sha256(names[name].read_bytes()).hexdigest()}\n" for name in sorted(names)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
