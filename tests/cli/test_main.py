"""The command line as a user meets it: a mistake is one clear line and exit code 2."""

import subprocess
import sys

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from takt.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--enable-lora"], ["--enable-lora", "LoRA"]),
        (["serve", "--max-num-seq", "1"], ["--max-num-seqs"]),
        (["serve", "--max-num-seqs", "0"], ["--max-num-seqs", "at least 1"]),
        (["serve", "--block-size", "17"], ["--block-size", "16", "32"]),
        (["serve", "--max-num-batched-tokens", "8"], ["--max-num-batched-tokens", "256"]),
        (["serve", "--gpu-memory-utilization", "1.5"], ["--gpu-memory-utilization", "1.5"]),
        (["serve", "--gpu-memory-utilization", "nan"], ["--gpu-memory-utilization", "nan"]),
        (["serve", "a", "--model", "b"], ["'a'", "'b'"]),
        (["generate", "m", "x", "--temperature", "-1"], ["temperature", "-1"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], words: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in ("serve", "pull", "models", "generate", "chat"):
        assert command in result.stdout


def test_missing_model_names_what_there_is() -> None:
    result = run("generate", "smollm2-136m", "x")
    assert result.returncode != 0
    assert "smollm2-135m" in result.stderr
    assert "Traceback" not in result.stderr
