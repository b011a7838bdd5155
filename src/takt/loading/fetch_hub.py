"""Fetches a model by its Hub id, and remembers what it fetched.

The Hub's client keeps the files in its own cache, shared with other programs. It would hand out a
half-fetched model as well, so a record is written once all files are there, with their sizes.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takt.config import cache_home
from takt.errors import FetchError, ModelError
from takt.loading.fetch_lock import fetch_lock
from takt.loading.growth import GrowthWatch, OnProgress

_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/([\w./-]+\.gguf))?", re.ASCII)
_BESIDE = {
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
}


@dataclass(frozen=True, slots=True)
class HubId:
    """`owner/name`, or `owner/name/file.gguf`."""

    repository: str
    file: str | None

    @staticmethod
    def parse(name: str) -> HubId | None:
        match = _HUB_ID.fullmatch(name)
        if match is None or ".." in name or (match[2] is None and name.endswith(".gguf")):
            return None
        return HubId(match[1], match[2])

    def __str__(self) -> str:
        return self.repository if self.file is None else f"{self.repository}/{self.file}"


def fetch_hub(hub_id: HubId, on_progress: OnProgress | None = None) -> Path:
    """The directory or GGUF file of a Hub model; raises `ModelError` with one line."""
    record = cache_home() / "hub" / f"{str(hub_id).replace('/', '--')}.json"
    path = _recorded(record)
    if path is not None:
        return path
    try:
        with fetch_lock(record.with_suffix(".lock"), on_progress):
            return _recorded(record) or _fetch(hub_id, record, on_progress)
    except ModelError:
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FetchError(f"{hub_id}: cannot be fetched: the disk is full") from None
        if error.errno in _UNWRITABLE:
            raise ModelError(
                f"{hub_id}: cannot write {error.filename}: {error.strerror}; TAKT_CACHE and "
                "HF_HOME name other places"
            ) from None
        raise _failure(hub_id, error) from None
    except Exception as error:  # The client raises those of its HTTP library too.
        raise _failure(hub_id, error) from None


def wanted_files(hub_id: HubId, sizes: dict[str, int]) -> list[str]:
    """Files of a repository that are needed, weights last; raises `ModelError` if it has none."""
    if hub_id.file is not None:
        if hub_id.file not in sizes:
            raise ModelError(f"{hub_id.repository}: has no file {hub_id.file}")
        return [hub_id.file]
    safetensors = [name for name in sizes if re.fullmatch(r"[^/]+\.safetensors", name)]
    if safetensors and "config.json" in sizes:
        if "model.safetensors" in sizes:
            safetensors = ["model.safetensors"]
        return [*sorted(_BESIDE & sizes.keys()), *sorted(safetensors)]
    gguf = sorted(name for name in sizes if name.endswith(".gguf"))
    if len(gguf) == 1:
        return gguf
    if gguf:
        raise ModelError(
            f"{hub_id}: has several GGUF files; name one, such as {hub_id}/{gguf[0]}. "
            f"They are: {', '.join(gguf)}"
        )
    raise ModelError(f"{hub_id}: has neither safetensors (with a config.json) nor GGUF files")


def _fetch(hub_id: HubId, record: Path, on_progress: OnProgress | None) -> Path:
    import huggingface_hub  # Slow to import, and most starts fetch nothing.
    from huggingface_hub.constants import HF_HUB_CACHE

    importlib.import_module("huggingface_hub.utils.tqdm").disable_progress_bars()
    info = huggingface_hub.HfApi().model_info(hub_id.repository, files_metadata=True, timeout=30)
    sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}
    names = wanted_files(hub_id, sizes)
    folder = Path(HF_HUB_CACHE) / f"models--{hub_id.repository.replace('/', '--')}"
    total = sum(sizes[name] for name in names)
    with GrowthWatch(folder, f"Fetching {hub_id}", total, on_progress):
        paths = [
            Path(huggingface_hub.hf_hub_download(hub_id.repository, name, revision=info.sha))
            for name in names
        ]
    whole = paths[0] if names[0].endswith(".gguf") else paths[0].parent
    _write_record(record, whole, paths)
    return whole


def _recorded(record: Path) -> Path | None:
    """The path in a record, if all its files are still there with their sizes."""
    try:
        entry: Any = json.loads(record.read_bytes())
        is_whole = all(Path(name).stat().st_size == size for name, size in entry["files"].items())
        return Path(entry["path"]) if is_whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_record(record: Path, whole: Path, paths: list[Path]) -> None:
    entry = {"path": str(whole), "files": {str(path): path.stat().st_size for path in paths}}
    handle, temporary = tempfile.mkstemp(dir=record.parent, prefix=".record-")
    with os.fdopen(handle, "w") as file:
        json.dump(entry, file)
    Path(temporary).replace(record)


def _failure(hub_id: HubId, error: Exception) -> ModelError:
    kind = type(error).__name__
    if kind in {"RepositoryNotFoundError", "RevisionNotFoundError"}:
        return ModelError(f"{hub_id}: no such model on the Hub (or a private one: set HF_TOKEN)")
    if kind == "GatedRepoError":
        return ModelError(f"{hub_id}: its licence must be accepted on the Hub, then set HF_TOKEN")
    if "Connect" in kind or "Timeout" in kind or "Offline" in kind or kind == "ProxyError":
        return FetchError(f"{hub_id}: the Hub cannot be reached (no network?)")
    lines = str(error).strip().splitlines() or [kind]
    return FetchError(f"{hub_id}: cannot be fetched: {lines[0]}")
