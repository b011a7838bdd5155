"""`takt profile` as a user meets it, and the page that is written from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from takt.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["profile", *arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "0"), "--steps must be at least 1"),
        (("--context", "0"), "--context must be at least 1"),
        (("--batch-size", "-1"), "--batch-size must be at least 0"),
        (("--batch-size", "0", "--prefill-tokens", "0"), "nothing to profile"),
        (("--html", "/nowhere/page.html"), "no folder /nowhere"),
        (("--stepz", "3"), "--stepz"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, "smollm2-135m", *arguments)
    assert code == 2 and out == ""
    assert message in err and err.count("\n") == 1


@pytest.mark.model
def test_a_real_model_is_profiled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = run(
        capsys,
        *("smollm2-135m", "--steps", "2", "--context", "20", "--batch-size", "2"),
        *("--prefill-tokens", "16", "--kv-cache-memory-bytes", "67108864"),
        *("--max-model-len", "256", "--json", "--html", str(page)),
    )
    assert code == 0
    decode, prefill = json.loads(out)
    assert decode["num_steps"] == 2 and prefill["num_steps"] == 3
    assert {row["name"] for row in decode["kinds"]} >= {"qkv", "attention", "gate and up", "logits"}
    assert len(decode["layers"]) == 32
    # Every weight once: 66.4 MB of Q4_1 and 30.1 MB of head, and some KV.
    assert 96e6 < decode["total"]["num_bytes"] < 99e6
    assert page.read_text().count("<svg") == 2


@pytest.mark.model
def test_the_page_in_docs_can_be_written_again(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.profile", "--quick", "--out", str(tmp_path / "p.md")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "p.md").read_text()
    committed = (ROOT / "docs" / "profile.md").read_text()

    def headings(page: str) -> list[str]:
        return [line for line in page.splitlines() if line.startswith("#")]

    assert headings(text) == headings(committed)
