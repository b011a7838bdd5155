"""Finds a model's shape: by alias, from a config.json, or from a GGUF file's header."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from takt.errors import ModelError
from takt.loading.aliases import ALIASES
from takt.loading.checkpoint import open_checkpoint
from takt.models.config import read_model_config
from takt.plan.errors import PlanInputError, unknown_name
from takt.plan.hardware_file import Section
from takt.plan.model_shape import ModelShape

_HEAD_TENSORS = ("output.weight", "token_embd.weight")


def find_model(name: str) -> ModelShape:
    """The shape of a model; `name` is an alias, a directory, a config.json or a GGUF file.

    Raises `PlanInputError` with the nearest names, or one that names the file and field.
    """
    path = Path(name)
    if path.suffix == ".gguf" or path.suffix == ".json" or path.is_dir():
        return _read_path(path)
    known = known_models()
    shape = known.get(name.lower())
    if shape is not None:
        return shape
    alias = ALIASES.get(name)
    if alias is not None:
        if not alias.is_cached:
            raise PlanInputError(
                f"model {name!r} is not in the cache; run `takt pull {name}` first"
            )
        return _from_gguf(alias.path)
    raise unknown_name("model", name, [*known, *ALIASES])


def known_models() -> dict[str, ModelShape]:
    """Shipped shapes, by name and alias in lower case."""
    path = Path(str(resources.files("takt.plan"))) / "data" / "models.toml"
    root = Section(path, "", tomllib.loads(path.read_text()))
    found: dict[str, ModelShape] = {}
    for section in root.sections("model"):
        shape = _from_section(section)
        for spelling in (shape.name, *section.texts("aliases")):
            found[spelling.lower()] = shape
    return found


def _from_section(section: Section) -> ModelShape:
    has_experts = section.has("num_experts")
    return ModelShape(
        name=section.text("name"),
        repository=section.text("repository"),
        num_layers=section.whole("num_layers"),
        hidden_size=section.whole("hidden_size"),
        intermediate_size=section.whole("intermediate_size"),
        num_heads=section.whole("num_heads"),
        num_kv_heads=section.whole("num_kv_heads"),
        head_dim=section.whole("head_dim"),
        vocab_size=section.whole("vocab_size"),
        max_position_embeddings=section.whole("max_position_embeddings"),
        is_tied=section.flag("is_tied", False),
        num_experts=section.whole("num_experts") if has_experts else 0,
        num_active_experts=section.whole("num_active_experts") if has_experts else 0,
    )


def _read_path(path: Path) -> ModelShape:
    if path.suffix == ".gguf":
        return _from_gguf(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text())
    except OSError as error:
        raise PlanInputError(f"{file}: cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PlanInputError(f"{file}: is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise PlanInputError(f"{file}: is no JSON object")
    return _from_config(file, fields)


def _from_config(file: Path, fields: dict[str, Any]) -> ModelShape:
    section = Section(file, "", fields)
    hidden, heads = section.whole("hidden_size"), section.whole("num_attention_heads")
    layers = section.whole("num_hidden_layers")
    given_head_dim = fields.get("head_dim") is not None
    experts = next((key for key in ("num_local_experts", "num_experts") if fields.get(key)), None)
    return ModelShape(
        name=file.resolve().parent.name,
        repository=str(file.parent),
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=_expert_size(section, fields, experts),
        num_heads=heads,
        num_kv_heads=section.whole("num_key_value_heads", heads),
        head_dim=section.whole("head_dim") if given_head_dim else max(1, hidden // heads),
        vocab_size=section.whole("vocab_size"),
        max_position_embeddings=section.whole("max_position_embeddings"),
        is_tied=section.flag("tie_word_embeddings", False),
        num_experts=section.whole(experts) if experts else 0,
        num_active_experts=section.whole("num_experts_per_tok") if experts else 0,
        windows=_windows(fields, layers),
    )


def _expert_size(section: Section, fields: dict[str, Any], experts: str | None) -> int:
    has_own = experts is not None and fields.get("moe_intermediate_size") is not None
    return section.whole("moe_intermediate_size" if has_own else "intermediate_size")


def _windows(fields: dict[str, Any], num_layers: int) -> tuple[int | None, ...]:
    window, kinds = fields.get("sliding_window"), fields.get("layer_types")
    if not isinstance(window, int) or fields.get("use_sliding_window") is False:
        return ()
    if isinstance(kinds, list) and len(kinds) == num_layers:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return (window,) * num_layers


def _from_gguf(path: Path) -> ModelShape:
    try:
        checkpoint = open_checkpoint(path)
    except ModelError as error:
        raise PlanInputError(str(error)) from error
    try:
        config = read_model_config(checkpoint)
        sizes = {
            tensor.name: tensor.type.row_bytes(tensor.shape[1]) * tensor.shape[0]
            for tensor in checkpoint.tensors.values()
            if len(tensor.shape) == 2
        }
    except ModelError as error:
        raise PlanInputError(str(error)) from error
    finally:
        checkpoint.close()
    head = next(sizes[name] for name in _HEAD_TENSORS if name in sizes)
    blocks = sum(size for name, size in sizes.items() if name not in _HEAD_TENSORS)
    windows = tuple(layer.window for layer in config.layers)
    return ModelShape(
        name=path.stem,
        repository=str(path),
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        is_tied=config.tie_word_embeddings,
        windows=windows if any(window is not None for window in windows) else (),
        file_block_bytes=float(blocks),
        file_head_bytes=float(head),
    )
