"""Merges that a scored vocabulary implies, and a cache of them.

SentencePiece joins the adjacent pair whose joined piece scores best; a merge list does the same if
it holds every split of every piece into two known ones, ordered by the piece's score. For 262,144
pieces deriving it takes seconds, so the list is kept, as pairs of ids, by the file's identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from takt.config import cache_home

_FORMAT_VERSION = 1


def derive_merges(ranks: dict[str, float], ids: dict[str, int]) -> NDArray[np.int32]:
    """Pairs of token ids, best first: int32 `[num_merges, 2]`.

    `ranks` are the scores of the pieces a merge may make. Among splits of one piece (and pieces of
    equal score) the longest left part comes first, as in the tokenizers that models are published
    with; what is left equal stays in the order of ids.
    """
    found: list[tuple[float, int, int, int, int]] = []
    for piece in sorted(ranks, key=ids.__getitem__):
        splits = []
        for middle in range(1, len(piece)):
            left = ids.get(piece[:middle])
            right = ids.get(piece[middle:]) if left is not None else None
            if left is not None and right is not None:
                splits.append((ranks[piece], middle, len(piece) - middle, left, right))
        splits.sort(key=lambda split: split[3:])
        found.extend(splits)
    found.sort(key=lambda split: split[:3], reverse=True)
    pairs = [split[3:] for split in found]
    return np.array(pairs, dtype=np.int32).reshape(len(pairs), 2)


def cached_merges(
    path: Path, vocab_size: int, derive: Callable[[], NDArray[np.int32]]
) -> NDArray[np.int32]:
    """What `derive` gives, kept for the model file `path`; works without a writable cache."""
    status = path.stat()
    identity = (
        f"{_FORMAT_VERSION}|{path.resolve()}|{status.st_dev}|{status.st_ino}|{status.st_size}"
        f"|{status.st_mtime_ns}|{vocab_size}"
    )
    key = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    kept = cache_home() / "tokenizers" / f"{key}.npy"
    pairs = _load(kept, vocab_size)
    if pairs is None:
        pairs = derive()
        _store(kept, pairs)
    return pairs


def _load(kept: Path, vocab_size: int) -> NDArray[np.int32] | None:
    """None if there is no cache, or one that cannot be ours."""
    try:
        pairs = np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if not isinstance(pairs, np.ndarray) or pairs.dtype != np.int32 or pairs.ndim != 2:
        return None
    if pairs.shape[1] != 2 or (pairs.size and (pairs.min() < 0 or pairs.max() >= vocab_size)):
        return None
    return pairs


def _store(kept: Path, pairs: NDArray[np.int32]) -> None:
    """A cache that cannot be written costs time at the next start and nothing else."""
    temporary: str | None = None
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=kept.parent, prefix=".merges-")
        with os.fdopen(handle, "wb") as file:
            np.save(file, pairs, allow_pickle=False)
        Path(temporary).replace(kept)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
