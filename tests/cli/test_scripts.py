"""The set-up's scripts, on the machines that lack something."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(
    *command: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(command),
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize(
    ("python", "environment", "words"),
    [
        ("/nowhere/python3", {}, "apt-get install python3"),
        ("false", {}, "does not run"),
        (sys.executable, {"CXX": "no-such-compiler"}, "no-such-compiler"),
    ],
)
def test_what_a_machine_lacks_is_one_line(
    python: str, environment: dict[str, str], words: str
) -> None:
    result = run(str(SCRIPTS / "check-prerequisites"), python, **environment)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert words in line


def test_an_extra_that_there_is_not_is_named_with_those_there_are(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS.parent / "pyproject.toml", tmp_path)
    commands = str(Path(sys.executable).parent)
    result = run(str(SCRIPTS / "install"), commands, "nonsense", cwd=tmp_path)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "no extra 'nonsense'" in line and "gateway" in line


def step(log: Path, code: str) -> subprocess.CompletedProcess[str]:
    return run(
        sys.executable, str(SCRIPTS / "step"), "trying", str(log), sys.executable, "-c", code
    )


def test_step_that_works_says_its_name_and_keeps_the_output(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "step.log"
    result = step(log, "print('much to tell')")
    assert (result.returncode, result.stdout, result.stderr) == (0, "takt: trying\n", "")
    assert log.read_text() == "much to tell\n"


def test_step_that_fails_shows_why_and_where_the_rest_is(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    result = step(log, "import sys; print(*range(100), sep='\\n', flush=True); sys.exit('no disk')")
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert "    no disk" in lines
    assert "    1" not in lines
    assert lines[-1] == f"takt: trying: failed; all of its output is in {log}"


def test_interrupted_step_says_how_to_go_on(tmp_path: Path) -> None:
    result = step(tmp_path / "step.log", "raise SystemExit(130)")
    assert result.returncode == 130
    assert "interrupted" in result.stderr
