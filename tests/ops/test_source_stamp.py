"""A native module of other sources is refused before it can give other numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from takt import _native
from takt.errors import ConfigError
from takt.ops.native.source_stamp import check_module, source_stamp

NATIVE = Path(__file__).parents[2] / "native"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return Path(shutil.copytree(NATIVE, tmp_path / "native"))


def test_the_build_and_python_compute_the_same_stamp(sources: Path) -> None:
    assert _native.source_stamp == source_stamp(sources)
    check_module(sources)


@pytest.mark.parametrize("name", ["bindings.cc", "kernels/kv.h", "pool/new.cc"])
def test_a_source_that_changed_is_told_with_the_way_out(sources: Path, name: str) -> None:
    with (sources / name).open("a") as file:
        file.write("// changed\n")
    with pytest.raises(ConfigError, match="make install"):
        check_module(sources)


def test_tests_are_no_part_of_the_module(sources: Path) -> None:
    (sources / "tests" / "new_test.cc").write_text("int main() {}\n")
    check_module(sources)


def test_without_sources_there_is_nothing_to_compare(tmp_path: Path) -> None:
    check_module(tmp_path)
