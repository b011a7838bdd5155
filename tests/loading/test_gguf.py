"""The GGUF reader: what valid files hold, and one line for every kind of broken file."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import gguf
import gguf_bytes as g
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from takt.errors import ModelError, UnsupportedModelError
from takt.loading.base import TensorInfo
from takt.loading.checkpoint import open_checkpoint
from takt.loading.dequantize import dequantize
from takt.types.quant import QuantType

F32 = 0
Q4_1 = 3
Q4_K = 12


def random_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


def small_file() -> g.GgufFile:
    return g.GgufFile(
        keys=[
            ("general.architecture", g.text("llama")),
            ("llama.block_count", g.scalar("u32", 2)),
            ("tokenizer.ggml.tokens", g.array("string", ["a", "b", "\u00e9\u6f22", ""])),
            ("tokenizer.ggml.scores", g.array("f32", [0.5, -1, 2, 3])),
        ],
        tensors=[
            g.Tensor("norm", [8], F32, random_bytes(32)),
            g.Tensor("weight", [64, 3], Q4_1, random_bytes(3 * 2 * 20)),
        ],
    )


def opened(tmp_path: Path, data: bytes):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return open_checkpoint(path)


def refusal(tmp_path: Path, file: g.GgufFile | bytes) -> str:
    data = file if isinstance(file, bytes) else file.build()
    with pytest.raises(ModelError) as caught:
        opened(tmp_path, data).close()
    message = str(caught.value)
    assert str(tmp_path / "model.gguf") in message
    assert "\n" not in message
    return message


def test_reads_what_the_reference_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_int32("i32", -5)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("yes", True)
    writer.add_array("words", ["x", "\u00fc", ""])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("flags", [True, False])
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    half = np.linspace(-1, 1, 10, dtype=np.float16)
    writer.add_tensor("matrix", matrix)
    writer.add_tensor("half", half)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    checkpoint = open_checkpoint(path)
    metadata = dict(checkpoint.metadata)
    assert metadata.pop("general.architecture") == "llama"
    assert metadata == {
        "u8": 200, "i8": -100, "u16": 60000, "i16": -30000, "i32": -5, "u64": 2**63,
        "i64": -(2**62), "f32": 0.5, "f64": 1e300, "yes": True, "words": ["x", "\u00fc", ""],
        "numbers": [1, -2, 3], "flags": [True, False],
    }  # fmt: skip
    assert checkpoint.tensors["matrix"] == TensorInfo("matrix", QuantType.F32, (4, 6))
    np.testing.assert_array_equal(dequantize(checkpoint.read("matrix")), matrix)
    np.testing.assert_array_equal(dequantize(checkpoint.read("half")), half.astype(np.float32))
    checkpoint.close()


def test_version_2_is_read(tmp_path: Path) -> None:
    file = small_file()
    file.version = g.u32(2)
    assert opened(tmp_path, file.build()).metadata["llama.block_count"] == 2


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_weights_start_at_the_alignment_the_file_gives(tmp_path: Path, alignment: int) -> None:
    file = small_file()
    file.keys.append(("general.alignment", g.scalar("u32", alignment)))
    file.alignment = alignment
    raw = opened(tmp_path, file.build()).read("weight").raw
    assert raw.tobytes() == file.tensors[1].data


def test_strings_across_the_windows_of_the_reader(tmp_path: Path) -> None:
    words = [f"w{i}" * (1 + i % 7) for i in range(150_000)] + ["long" * 400_000, "last"]
    file = g.GgufFile(keys=[("tokens", g.array("string", words)), ("x", g.scalar("u32", 7))])
    metadata = opened(tmp_path, file.build()).metadata
    assert metadata["tokens"] == words
    assert metadata["x"] == 7


@pytest.mark.parametrize(("type_id", "kind"), [(F32, QuantType.F32), (Q4_1, QuantType.Q4_1),
                                               (Q4_K, QuantType.Q4_K)])  # fmt: skip
def test_slices_equal_slices_of_the_whole(tmp_path: Path, type_id: int, kind: QuantType) -> None:
    data = random_bytes(5 * kind.row_bytes(1024), seed=type_id)
    file = g.GgufFile(tensors=[g.Tensor("w", [1024, 5], type_id, data)])
    checkpoint = opened(tmp_path, file.build())
    whole = checkpoint.read("w")
    assert whole.shape == (5, 1024)
    assert whole.raw.tobytes() == data
    rows = checkpoint.read("w", rows=(1, 4))
    assert rows.shape == (3, 1024)
    np.testing.assert_array_equal(rows.raw, whole.raw[1:4])
    part = checkpoint.read("w", rows=(2, 5), columns=(256, 768))
    assert part.shape == (3, 512)
    first, last = kind.row_bytes(256), kind.row_bytes(768)
    np.testing.assert_array_equal(part.raw, whole.raw[2:5, first:last])
    assert part.raw.flags.c_contiguous


def test_slices_outside_or_off_group_borders_are_refused(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, small_file().build())
    for rows, columns, problem in [
        ((0, 4), None, "rows 0..4"),
        ((2, 2), None, "rows 2..2"),
        ((-1, 2), None, "rows -1..2"),
        (None, (0, 65), "columns 0..65"),
        (None, (16, 64), "groups of 32"),
    ]:
        with pytest.raises(ModelError, match=r"tensor 'weight'") as caught:
            checkpoint.read("weight", rows=rows, columns=columns)
        assert problem in str(caught.value)
    with pytest.raises(ModelError, match="no such tensor"):
        checkpoint.read("bias")


def test_outer_dimensions_of_one_are_dropped_and_others_cannot_be_read(tmp_path: Path) -> None:
    file = g.GgufFile(
        tensors=[
            g.Tensor("flat", [4, 2, 1, 1], F32, random_bytes(32)),
            g.Tensor("deep", [4, 2, 3], F32, random_bytes(96)),
        ]
    )
    checkpoint = opened(tmp_path, file.build())
    assert checkpoint.tensors["flat"].shape == (2, 4)
    assert checkpoint.tensors["deep"].shape == (3, 2, 4)
    with pytest.raises(UnsupportedModelError, match="deep"):
        checkpoint.read("deep")


def broken_head(**changes: object) -> g.GgufFile:
    file = small_file()
    for name, value in changes.items():
        setattr(file, name, value)
    return file


def with_key(value: bytes, key: str | bytes = "k") -> g.GgufFile:
    return g.GgufFile(keys=[(key, value)])


def with_tensor(**changes: object) -> g.GgufFile:
    fields: dict[str, object] = {
        "name": "w", "dimensions": [32, 2], "type_id": Q4_1, "data": random_bytes(40),
    }  # fmt: skip
    return g.GgufFile(tensors=[g.Tensor(**(fields | changes))])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (broken_head(magic=b"GGML"), ["magic", "not a GGUF file"]),
        (broken_head(version=g.u32(1)), ["version", "is 1"]),
        (broken_head(version=b"\0\0\0\3"), ["big-endian"]),
        (broken_head(magic=b"FUGG"), ["big-endian"]),
        (broken_head(num_tensors=2**60), ["tensor count", str(2**60)]),
        (broken_head(num_tensors=5000), ["tensor count", "room"]),
        (broken_head(num_keys=2**63), ["metadata count"]),
        (with_key(b"", key=b"\xff\xfe"), ["metadata key 0", "UTF-8"]),
        (with_key(g.u32(8) + g.u64(2**62)), ["k", str(2**62)]),
        (with_key(g.u32(8) + g.u64(2000)), ["k", "2000 bytes"]),
        (with_key(g.text(b"\xc3(")), ["k", "UTF-8"]),
        (with_key(g.u32(99)), ["k (type)", "99"]),
        (with_key(g.scalar("bool", 2)), ["k", "boolean"]),
        (with_key(g.u32(9) + g.u32(4) + g.u64(2**61)), ["k (length)", str(2**61)]),
        (with_key(g.u32(9) + g.u32(8) + g.u64(2**40)), ["k (length)", str(2**40)]),
        (with_key(g.u32(9) + g.u32(9) + g.u64(1)), ["k (element type)", "9"]),
        (with_key(g.array("string", [b"ok", b"\xff"])), ["k[1]", "UTF-8"]),
        (g.GgufFile(keys=[("k", g.scalar("u8", 1))] * 2), ["'k'", "twice"]),
        (with_key(g.scalar("u32", 0), "general.alignment"), ["general.alignment", "0"]),
        (with_key(g.scalar("u32", 48), "general.alignment"), ["general.alignment", "48"]),
        (with_key(g.text("32"), "general.alignment"), ["general.alignment"]),
        (with_tensor(dimensions=[]), ["'w' (dimensions)", "is 0"]),
        (with_tensor(dimensions=[1] * 5), ["'w' (dimensions)", "is 5"]),
        (with_tensor(dimensions=[32, 0]), ["'w' (shape)", "no elements"]),
        (with_tensor(dimensions=[33, 2]), ["'w' (shape)", "groups of 32"]),
        (with_tensor(dimensions=[32, 2**62]), ["'w'", "do not fit"]),
        (with_tensor(dimensions=[2**63, 2**63]), ["'w'", "do not fit"]),
        (with_tensor(type_id=1000), ["'w' (type)", "1000"]),
        (with_tensor(type_id=10), ["'w' (type)", "q2_k", "q4_1"]),
        (with_tensor(offset=8), ["'w' (offset)", "multiple of 32"]),
        (with_tensor(offset=2**40), ["'w'", "do not fit"]),
        (with_tensor(data=b""), ["'w'", "do not fit"]),
        (g.GgufFile(tensors=[g.Tensor("w", [8], F32, random_bytes(32), 0)] * 2), ["overlaps"]),
        (
            g.GgufFile(tensors=[g.Tensor("w", [8], F32, random_bytes(32))] * 2),
            ["'w'", "comes twice"],
        ),
        (b"", ["magic"]),
        (b"GG", ["magic"]),
    ],
)
def test_a_broken_file_is_refused_by_field(
    tmp_path: Path, file: g.GgufFile | bytes, words: list[str]
) -> None:
    message = refusal(tmp_path, file)
    for word in words:
        assert word in message


def test_a_known_but_unsupported_storage_type_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError):
        opened(tmp_path, with_tensor(type_id=23).build())


def test_one_file_of_a_split_model_says_so(tmp_path: Path) -> None:
    file = small_file()
    file.keys.append(("split.count", g.scalar("u16", 3)))
    with pytest.raises(UnsupportedModelError, match=r"split\.count.*3 files"):
        opened(tmp_path, file.build())


@pytest.mark.parametrize("count", [2**22 + 1, 2**31, 2**63])
def test_huge_counts_cost_no_memory(tmp_path: Path, count: int) -> None:
    """The file is sparse and has room for the count: only the limit stands in the way."""
    path = tmp_path / "model.gguf"
    path.write_bytes(with_key(g.u32(9) + g.u32(0) + g.u64(count)).build())
    os.truncate(path, 1 << 36)
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"k \(length\)"):
        open_checkpoint(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_file_cut_while_open_is_an_error_at_the_next_read(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, small_file().build())
    os.truncate(tmp_path / "model.gguf", 100)
    with pytest.raises(ModelError, match=r"tensor 'weight'.*cut"):
        checkpoint.read("weight")


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="no such file"):
        open_checkpoint(tmp_path / "absent.gguf")


def test_a_directory_stands_for_the_one_gguf_file_in_it(tmp_path: Path) -> None:
    data = small_file().build()
    (tmp_path / "one.gguf").write_bytes(data)
    assert open_checkpoint(tmp_path).path == tmp_path / "one.gguf"
    (tmp_path / "two.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"one\.gguf, two\.gguf"):
        open_checkpoint(tmp_path)


def opens_or_refuses(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        checkpoint = open_checkpoint(path)
    except ModelError as error:
        assert str(path) in str(error)
        return
    for name, info in checkpoint.tensors.items():
        if len(info.shape) <= 2:
            checkpoint.read(name)
    checkpoint.close()


FUZZ = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = small_file().build()
    needed = len(data.rstrip(b"\0"))
    for length in range(needed):
        refusal(tmp_path, data[:length])


@FUZZ
@given(st.data())
def test_changed_bytes_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small_file().build())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    opens_or_refuses(tmp_path / "model.gguf", bytes(content))


@FUZZ
@given(
    st.integers(0, 400),
    st.sampled_from([4, 8]),
    st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]),
)
def test_overwritten_words_never_crash(tmp_path: Path, at: int, size: int, value: int) -> None:
    content = bytearray(small_file().build())
    at = min(at, len(content) - size)
    content[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    opens_or_refuses(tmp_path / "model.gguf", bytes(content))


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes_after_the_magic_never_crash(tmp_path: Path, tail: bytes) -> None:
    opens_or_refuses(tmp_path / "model.gguf", b"GGUF\3\0\0\0" + tail)
