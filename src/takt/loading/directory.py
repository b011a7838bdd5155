"""Hugging Face directories: config.json and safetensors files, one or sharded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.base import TensorInfo
from takt.loading.json_file import read_json_object
from takt.loading.safetensors import SafetensorsFile
from takt.types.quant import QuantTensor

_INDEX = "model.safetensors.index.json"
_MAX_SHARDS = 4096


class SafetensorsCheckpoint:
    """An open directory; implements `Checkpoint`.

    `metadata` is the parsed config.json; under `generation_config` it also holds the parsed
    generation_config.json, {} if there is none.
    """

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json_object(path / "config.json")
        generation = path / "generation_config.json"
        config["generation_config"] = read_json_object(generation) if generation.exists() else {}
        self.metadata: Mapping[str, Any] = config
        self._shards: list[SafetensorsFile] = []
        self._shard_of: dict[str, SafetensorsFile] = {}
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = {
            name: shard.places[name].info for name, shard in self._shard_of.items()
        }

    @property
    def num_bytes_read(self) -> int:
        return sum(shard.num_bytes_read for shard in self._shards)

    def read(
        self,
        name: str,
        *,
        rows: tuple[int, int] | None = None,
        columns: tuple[int, int] | None = None,
    ) -> QuantTensor:
        shard = self._shard_of.get(name)
        if shard is None:
            raise ModelError(f"{self.path}: tensor {name!r}: the model has no such tensor")
        return shard.read(name, rows, columns)

    def close(self) -> None:
        for shard in self._shards:
            shard.close()

    def _open(self, path: Path) -> None:
        if (path / "model.safetensors").exists():
            self._add_all(path / "model.safetensors")
        elif (path / _INDEX).exists():
            self._open_sharded(path / _INDEX)
        else:
            self._add_all(_only_file(path))

    def _add_all(self, path: Path) -> None:
        shard = SafetensorsFile(path)
        self._shards.append(shard)
        self._shard_of = dict.fromkeys(shard.places, shard)

    def _open_sharded(self, index: Path) -> None:
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index}: weight_map: is not a JSON object of tensors and files")
        names = list(weight_map.values())
        # A name with a directory in it could point anywhere on this machine.
        if not all(isinstance(name, str) and name == Path(name).name for name in names):
            raise ModelError(f"{index}: weight_map: names something other than files beside it")
        files = sorted(set(names))
        if len(files) > _MAX_SHARDS:
            raise ModelError(f"{index}: weight_map: {len(files)} files, the limit is {_MAX_SHARDS}")
        shards = {}
        for name in files:
            shards[name] = SafetensorsFile(index.parent / name)
            self._shards.append(shards[name])
        for tensor, name in weight_map.items():
            if tensor not in shards[name].places:
                raise ModelError(f"{index}: weight_map: {name} has no tensor {tensor!r}")
            self._shard_of[tensor] = shards[name]


def _only_file(path: Path) -> Path:
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelError(f"{path}: has {len(files)} safetensors files but no {_INDEX}")
    pickled = sorted([*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")])
    if pickled:
        raise UnsupportedModelError(
            f"{path}: {pickled[0].name} is a pickle, which can run code when read; only "
            "safetensors and GGUF are read: convert it, or fetch the safetensors files"
        )
    raise ModelError(f"{path}: has no safetensors files")
