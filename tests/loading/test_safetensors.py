"""Hugging Face directories: safetensors files, single and sharded, and everything broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.checkpoint import open_checkpoint
from takt.loading.dequantize import dequantize
from takt.types.quant import QuantType

RNG = np.random.default_rng(5)
MATRIX = RNG.standard_normal((6, 8)).astype(np.float32)
HALF = RNG.standard_normal(10).astype(np.float16)


def file_bytes(header: Any, weights: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + weights


def model_directory(path: Path, data: bytes) -> Path:
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "model.safetensors").write_bytes(data)
    return path


def entry(dtype: str, shape: list[int], first: int, last: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def test_reads_what_the_reference_library_wrote(tmp_path: Path) -> None:
    data = safetensors.numpy.save({"matrix": MATRIX, "half": HALF}, metadata={"format": "pt"})
    checkpoint = open_checkpoint(model_directory(tmp_path, data))
    assert checkpoint.format == "safetensors"
    assert checkpoint.metadata["model_type"] == "llama"
    assert set(checkpoint.tensors) == {"matrix", "half"}
    assert checkpoint.tensors["matrix"].shape == (6, 8)
    np.testing.assert_array_equal(dequantize(checkpoint.read("matrix")), MATRIX)
    np.testing.assert_array_equal(dequantize(checkpoint.read("half")), HALF.astype(np.float32))
    part = checkpoint.read("matrix", rows=(1, 5), columns=(2, 7))
    np.testing.assert_array_equal(dequantize(part), MATRIX[1:5, 2:7])
    checkpoint.close()


def test_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    weights = struct.pack("<3H", 0x3F80, 0xC000, 0x7F7F)
    data = file_bytes({"w": entry("BF16", [3], 0, 6)}, weights)
    tensor = open_checkpoint(model_directory(tmp_path, data)).read("w")
    assert tensor.type is QuantType.BF16
    assert dequantize(tensor).tolist()[:2] == [1.0, -2.0]
    assert tensor.raw.tobytes() == weights


def test_a_scalar_is_a_vector_of_one(tmp_path: Path) -> None:
    data = file_bytes({"s": entry("F32", [], 0, 4)}, struct.pack("<f", 2.5))
    tensor = open_checkpoint(model_directory(tmp_path, data)).read("s")
    assert dequantize(tensor).tolist() == [2.5]


def test_generation_config_is_part_of_the_metadata(tmp_path: Path) -> None:
    path = model_directory(tmp_path, file_bytes({"w": entry("F32", [1], 0, 4)}, b"\0" * 4))
    assert open_checkpoint(path).metadata["generation_config"] == {}
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    assert open_checkpoint(path).metadata["generation_config"] == {"eos_token_id": [1, 7]}


def sharded_directory(path: Path, weight_map: Any) -> Path:
    (path / "config.json").write_text("{}")
    for name, tensor in (("a", MATRIX), ("b", HALF)):
        (path / f"{name}.safetensors").write_bytes(safetensors.numpy.save({name: tensor}))
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def test_sharded_models_are_read_by_their_index(tmp_path: Path) -> None:
    path = sharded_directory(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"})
    checkpoint = open_checkpoint(path)
    np.testing.assert_array_equal(dequantize(checkpoint.read("a")), MATRIX)
    np.testing.assert_array_equal(dequantize(checkpoint.read("b")), HALF.astype(np.float32))
    with pytest.raises(ModelError, match="no such tensor"):
        checkpoint.read("c")


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "../a.safetensors"}, "weight_map"),
        ({"a": "/etc/passwd"}, "weight_map"),
        ({"a": ".."}, "cannot be|regular file"),
        ({"a": "missing.safetensors"}, r"missing\.safetensors.*cannot be opened"),
        ({"b": "a.safetensors"}, "has no tensor 'b'"),
        ({"a": 3}, "weight_map"),
        ({}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_an_index_that_cannot_be_right_is_refused(
    tmp_path: Path, weight_map: Any, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        open_checkpoint(sharded_directory(tmp_path, weight_map))


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    path = sharded_directory(tmp_path, {"a": "a.safetensors"})
    (path / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        open_checkpoint(path)


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin is a pickle"):
        open_checkpoint(tmp_path)


def test_a_directory_without_weights_or_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json.*cannot be read"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "{" * 100_000, '{"a": 1, "a": 2}', "\udcff"])
def test_a_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    path = model_directory(tmp_path, b"")
    (path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=r"config\.json"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "header"),
        (b"\0" * 7, "header"),
        (struct.pack("<Q", 2**63), "header"),
        (struct.pack("<Q", 100) + b"{}", "header"),
        (file_bytes(b"{"), "header.*JSON"),
        (file_bytes(b"[]"), "header.*object"),
        (file_bytes(b'{"w": 1, "w": 2}'), "'w' comes twice"),
        (file_bytes(b'{"w": ' + b"9" * 5000 + b"}"), "header"),
        (file_bytes(b"[" * 100_000), "header"),
        (file_bytes({"w": 3}), "'w'"),
        (file_bytes({"w": entry("F32", [2], 0, 4)}, b"\0" * 8), "span 4 bytes"),
        (file_bytes({"w": entry("F32", [1], 0, 4)}), "do not fit"),
        (file_bytes({"w": entry("F32", [2**62], 0, 2**64)}), "shape|data_offsets|fit"),
        (file_bytes({"w": entry("F32", [-1], 4, 0)}), "shape"),
        (file_bytes({"w": entry("F32", [0], 0, 0)}), "shape"),
        (file_bytes({"w": entry("F32", [True], 0, 4)}, b"\0" * 4), "shape"),
        (file_bytes({"w": entry("F32", [1.0], 0, 4)}, b"\0" * 4), "shape"),  # type: ignore[list-item]
        (file_bytes({"w": {"dtype": "F32", "shape": [1]}}), "data_offsets"),
        (file_bytes({"w": entry("F32", [1], 0, 4) | {"data_offsets": [0]}}), "two numbers"),
        (file_bytes({"w": entry("X9", [1], 0, 4)}), "'X9' is no safetensors type"),
        (file_bytes({"w": entry("F32", [1], 0, 4), "v": entry("F32", [1], 2, 6)}, b"\0" * 8),
         "overlaps"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_by_field(tmp_path: Path, data: bytes, words: str) -> None:
    path = model_directory(tmp_path, data)
    with pytest.raises(ModelError, match=rf"model\.safetensors.*({words})") as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_an_unsupported_storage_type_says_so(tmp_path: Path) -> None:
    data = file_bytes({"w": entry("F8_E4M3", [4], 0, 4)}, b"\0" * 4)
    with pytest.raises(UnsupportedModelError, match=r"F8_E4M3.*BF16"):
        open_checkpoint(model_directory(tmp_path, data))


def test_load_format_must_fit_the_path(tmp_path: Path) -> None:
    path = model_directory(tmp_path, file_bytes({"w": entry("F32", [1], 0, 4)}, b"\0" * 4))
    assert open_checkpoint(path, "safetensors").format == "safetensors"
    with pytest.raises(ModelError, match="directories"):
        open_checkpoint(path / "model.safetensors", "safetensors")
    with pytest.raises(ModelError, match="GGUF"):
        open_checkpoint(path, "gguf")


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_changed_and_cut_files_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(safetensors.numpy.save({"matrix": MATRIX, "half": HALF}))
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = model_directory(tmp_path, bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        checkpoint = open_checkpoint(path)
    except ModelError as error:
        assert "model.safetensors" in str(error)
        return
    for name, info in checkpoint.tensors.items():
        if len(info.shape) <= 2:
            checkpoint.read(name)
    checkpoint.close()
