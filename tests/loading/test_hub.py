"""Names of models: paths, aliases fetched by a real pip from a local folder, Hub ids."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from takt.errors import ModelError
from takt.loading import fetch_packages, hub
from takt.loading.aliases import ALIASES, Alias, Part
from takt.loading.fetch_hub import HubId, wanted_files
from takt.loading.fetch_packages import fetch_alias
from takt.loading.hub import list_models, resolve_model

CONTENT = [random.Random(index).randbytes(size) for index, size in enumerate((300_000, 200_000))]


def write_wheel(folder: Path, index: int, content: bytes) -> None:
    name = f"takt_test_part{index}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/data.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def alias(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """An alias in two parts that pip finds in a folder, and nowhere else."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for index, content in enumerate(CONTENT):
        write_wheel(wheels, index, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    made = Alias(
        name="tiny",
        file_name="tiny.gguf",
        parts=tuple(
            Part(f"takt-test-part{index}==1.0", f"takt_test_part{index}/data.bin")
            for index in range(2)
        ),
        num_bytes=sum(map(len, CONTENT)),
        sha256=hashlib.sha256(b"".join(CONTENT)).hexdigest(),
    )
    monkeypatch.setitem(ALIASES, "tiny", made)
    return made


@pytest.fixture
def local_alias(alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """The same without pip's seconds, for what happens after it."""

    def copy(alias: Alias, scratch: Path) -> None:
        shutil.copytree(tmp_path / "wheels", scratch, dirs_exist_ok=True)

    monkeypatch.setattr(fetch_packages, "_download", copy)
    return alias


def left_in(cache: Path) -> list[str]:
    """All that a fetch left, the lock files aside."""
    return sorted(
        str(path.relative_to(cache))
        for path in cache.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


def test_an_alias_is_fetched_once(
    alias: Alias, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int, int]] = []
    resolved = resolve_model("tiny", lambda *call: calls.append(call))
    assert resolved.name == "tiny"
    assert resolved.path.read_bytes() == b"".join(CONTENT)
    assert left_in(cache) == ["models/tiny/tiny.gguf"]
    assert calls[-1] == ("Unpacking tiny", alias.num_bytes, alias.num_bytes)
    assert all(0 <= done <= total for _, done, total in calls)
    monkeypatch.setattr(fetch_packages, "_download", None)
    assert resolve_model("tiny") == resolved


def test_a_cut_file_in_the_cache_is_fetched_again(local_alias: Alias) -> None:
    path = fetch_alias(local_alias)
    os.truncate(path, 1000)
    assert not local_alias.is_cached
    assert fetch_alias(local_alias).read_bytes() == b"".join(CONTENT)


def fetch_in_child(alias: Alias, results: Any) -> None:
    stages: list[str] = []
    path = fetch_alias(alias, lambda stage, done, total: stages.append(stage))
    results.put((path.read_bytes() == b"".join(CONTENT), "Fetching tiny" in stages))


def test_of_two_processes_at_once_one_fetches(alias: Alias) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=fetch_in_child, args=(alias, results)) for _ in range(2)]
    for child in children:
        child.start()
    outcomes = [results.get(timeout=200) for _ in children]
    for child in children:
        child.join(200)
    assert [whole for whole, _ in outcomes] == [True, True]
    assert sum(fetched for _, fetched in outcomes) == 1


def die_unpacking(alias: Alias) -> None:
    def on_progress(stage: str, done: int, total: int) -> None:
        if stage == "Unpacking tiny" and done == total:
            os.kill(os.getpid(), signal.SIGKILL)

    fetch_alias(alias, on_progress)


def test_a_killed_fetch_leaves_nothing_that_looks_whole(alias: Alias, cache: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=die_unpacking, args=(alias,))
    child.start()
    child.join(200)
    assert child.exitcode == -signal.SIGKILL
    assert not alias.path.exists()
    assert not alias.is_cached
    assert left_in(cache)  # The scratch folder, which the next fetch clears away.
    fetch_alias(alias)
    assert left_in(cache) == ["models/tiny/tiny.gguf"]


def refusal(alias: Alias) -> str:
    with pytest.raises(ModelError) as caught:
        fetch_alias(alias)
    assert not alias.path.exists()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_wrong_hash_is_refused_and_nothing_kept(local_alias: Alias, cache: Path) -> None:
    message = refusal(replace(local_alias, sha256="0" * 64))
    assert "0" * 64 in message
    assert local_alias.sha256 in message
    assert left_in(cache) == []


def test_a_file_larger_than_known_is_refused(local_alias: Alias, cache: Path) -> None:
    assert "larger" in refusal(replace(local_alias, num_bytes=1000))
    assert left_in(cache) == []


def test_a_package_without_the_file_is_refused(local_alias: Alias) -> None:
    part = replace(local_alias.parts[0], member="elsewhere.bin")
    assert "elsewhere.bin" in refusal(replace(local_alias, parts=(part, *local_alias.parts[1:])))


def test_a_package_that_is_no_zip_is_refused(local_alias: Alias, tmp_path: Path) -> None:
    wheel = tmp_path / "wheels" / "takt_test_part1-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:1000])
    assert "tiny" in refusal(local_alias)


def test_a_package_that_does_not_exist_is_one_line(alias: Alias) -> None:
    message = refusal(replace(alias, parts=(Part("takt-test-absent==1.0", "x"),)))
    assert "takt-test-absent" in message


def test_no_network_is_said_in_words(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert "no network" in refusal(alias)


def test_no_pip_is_said_in_words(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_packages.importlib.util, "find_spec", lambda name: None)
    assert "needs pip" in refusal(alias)


def test_a_full_disk_is_said_in_words(local_alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(fetch_packages.os, "fsync", fail)
        assert "is full" in refusal(local_alias)
    usage = namedtuple("usage", "total used free")(10, 9, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "68 MB free" in refusal(local_alias)


def test_a_cache_that_cannot_be_written_is_said_in_words(
    alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path / "file"))
    assert "TAKT_CACHE" in refusal(alias)


def test_a_path_wins_over_an_alias(
    alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve_model("tiny").path == Path("tiny")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm-135m", r"did you mean smollm2-135m\?.*gemma3-270m"),
        ("", "gemma3-270m"),
        ("no such model", "smollm2-135m"),
        ("./absent", "no such file"),
        ("/absent/model", "no such file"),
        ("~/absent.gguf", "no such file"),
        ("models/absent.gguf", "no such file"),
        ("absent.gguf", "no such file"),
        ("a/../b", "no such file"),
    ],
)
def test_unknown_names(cache: Path, name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        resolve_model(name)


def test_list_models_says_what_is_cached(local_alias: Alias) -> None:
    def listed() -> dict[str, bool]:
        return {model.name: model.is_cached for model in list_models()}

    assert listed() == {"smollm2-135m": False, "gemma3-270m": False, "tiny": False}
    fetch_alias(local_alias)
    assert listed() == {"smollm2-135m": False, "gemma3-270m": False, "tiny": True}
    assert {model.num_bytes for model in list_models()} >= {local_alias.num_bytes, 98_362_432}


@pytest.mark.parametrize(
    ("name", "files", "wanted"),
    [
        (
            "a/b",
            ["README.md", "config.json", "model.safetensors", "model-00001.safetensors",
             "pytorch_model.bin", "tokenizer.json", "onnx/model.onnx", "run.py"],
            ["config.json", "tokenizer.json", "model.safetensors"],
        ),
        ("a/b", ["config.json", "x-2.safetensors", "x-1.safetensors"],
         ["config.json", "x-1.safetensors", "x-2.safetensors"]),
        ("a/b", ["README.md", "x.gguf"], ["x.gguf"]),
        ("a/b/y.gguf", ["x.gguf", "y.gguf"], ["y.gguf"]),
        ("a/b/q4/y.gguf", ["x.gguf", "q4/y.gguf"], ["q4/y.gguf"]),
    ],
)  # fmt: skip
def test_only_needed_files_of_a_hub_model_are_fetched(
    name: str, files: list[str], wanted: list[str]
) -> None:
    hub_id = HubId.parse(name)
    assert hub_id is not None
    assert wanted_files(hub_id, dict.fromkeys(files, 1)) == wanted


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("a/b", ["x.gguf", "y.gguf"], r"several.*a/b/x\.gguf"),
        ("a/b", ["pytorch_model.bin", "config.json"], "neither safetensors"),
        ("a/b", ["model.safetensors"], "config.json"),
        ("a/b/z.gguf", ["x.gguf"], r"no file z\.gguf"),
    ],
)
def test_hub_models_without_the_files(name: str, files: list[str], words: str) -> None:
    hub_id = HubId.parse(name)
    assert hub_id is not None
    with pytest.raises(ModelError, match=words):
        wanted_files(hub_id, dict.fromkeys(files, 1))


class FakeHub:
    """Stands for the Hub's client: one repository of small files."""

    def __init__(self, folder: Path, fail_at: str | None = None) -> None:
        self.folder = folder
        self.fail_at = fail_at
        self.downloads: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(self.folder))
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)

    def model_info(self, repository: str, **options: Any) -> Any:
        assert repository == "some/model"
        entry = namedtuple("entry", "rfilename size")
        siblings = [entry(name, 5) for name in ("config.json", "model.safetensors", "x.bin")]
        return namedtuple("info", "sha siblings")("abc123", siblings)

    def download(self, repository: str, name: str, *, revision: str) -> str:
        assert revision == "abc123"
        self.downloads.append(name)
        if name == self.fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        path = self.folder / "snapshot" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        return str(path)


def test_a_hub_model_is_fetched_once_and_again_if_a_file_goes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeHub(tmp_path / "hub")
    client.install(monkeypatch)
    calls: list[tuple[str, int, int]] = []
    resolved = resolve_model("some/model", lambda *call: calls.append(call))
    assert resolved.path == tmp_path / "hub" / "snapshot"
    assert client.downloads == ["config.json", "model.safetensors"]
    assert calls[-1] == ("Fetching some/model", 10, 10)
    assert resolve_model("some/model") == resolved
    assert len(client.downloads) == 2
    (resolved.path / "model.safetensors").write_bytes(b"123")
    assert resolve_model("some/model") == resolved
    assert len(client.downloads) == 4


def test_an_interrupted_hub_fetch_does_not_look_whole(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = FakeHub(tmp_path / "hub", fail_at="model.safetensors")
    broken.install(monkeypatch)
    with pytest.raises(ModelError, match=r"some/model.*disk is full"):
        resolve_model("some/model")
    assert left_in(cache) == []
    FakeHub(tmp_path / "hub").install(monkeypatch)
    assert resolve_model("some/model").path.name == "snapshot"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("RepositoryNotFoundError", "no such model"),
        ("GatedRepoError", "licence"),
        ("ConnectError", "no network"),
        ("OfflineModeIsEnabled", "no network"),
        ("HfHubHTTPError", "cannot be fetched: first line$"),
    ],
)
def test_errors_of_the_hub_are_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    error = type(kind, (Exception,), {})("first line\nsecond line")

    def fail() -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "HfApi", fail)
    with pytest.raises(ModelError, match=rf"some/model: .*{words}"):
        resolve_model("some/model")


def test_the_published_aliases_are_whole() -> None:
    assert hub.ALIASES is ALIASES
    for name, alias in ALIASES.items():
        assert alias.name == name
        assert len(bytes.fromhex(alias.sha256)) == 32
        assert all("==" in part.requirement for part in alias.parts)
