"""The command line as a user meets it: a mistake is one clear line and exit code 2."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import takt
from takt.cli.main import MODULES, main, make_app
from takt.config import ModelConfigOptions

Ended = subprocess.CompletedProcess[str]


def run(*arguments: str) -> Ended:
    """In a process of its own."""
    code = "from takt.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200
    )


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The same in this process: for what leaves nothing behind."""

    def call(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        return Ended(arguments, int(end.value.code or 0), *capsys.readouterr())

    return call


def test_an_interrupt_while_the_command_line_is_loaded_leaves_no_trace() -> None:
    code = """if True:
        import os, signal, sys

        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "typer":
                    os.kill(os.getpid(), signal.SIGINT)

        # A job that a shell has put into the background starts with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.meta_path.insert(0, Interrupt())
        from takt.cli.entry import main

        main()
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=200)
    assert (ended.returncode, ended.stderr) == (130, b"")


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
        (["generate"], ["MODEL", "takt generate --help"]),
        (["generate", "a", "b", "surplus"], ["surplus", "takt generate --help"]),
        (["serve", "--port", "many"], ["--port", "takt serve --help"]),
        (["serve", "--port", "99999"], ["--port", "65535", "99999"]),
        (["serve", "--log-level", "loud"], ["--log-level", "'loud'", "debug"]),
        (["serve", "--api-key"], ["--api-key", "takt serve --help"]),
        (["serv"], ["serv", "takt --help"]),
        (["dql", "list", "--store", "x"], ["'dlq'", "takt --help"]),
        (["dlq", "lst", "--store", "x"], ["'list'", "takt dlq --help"]),
        (["dlq", "frobnicate"], ["frobnicate", "takt dlq --help"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    call: Callable[..., Ended], arguments: list[str], words: list[str]
) -> None:
    result = call(*arguments)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_a_bench_of_a_server_that_is_not_there_is_one_line(call: Callable[..., Ended]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        result = call("bench", f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "/v1/models failed" in line


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in MODULES:
        assert f"\n  {command} " in result.stdout


def test_no_arguments_at_all_show_the_help_and_nothing_else(call: Callable[..., Ended]) -> None:
    result = call()
    assert result.returncode == 2
    assert "serve" in result.stdout
    assert result.stderr == ""


def test_help_has_every_flag_in_full_on_a_narrow_terminal(
    call: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("serve", "--help").stdout.splitlines()
    words = {word for line in lines for word in line.split()}
    for flag in ("--kv-cache-memory-bytes", "--no-enable-prefix-caching", "--slo-itl-p99-ms"):
        assert flag in words
    assert max(len(line) for line in lines) <= 80


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_is_one_line(call: Callable[..., Ended], argument: str) -> None:
    result = call(argument)
    assert result.returncode == 0
    assert result.stdout == f"{takt.__version__}\n"


@pytest.mark.parametrize("command", ["serve", "generate", "chat", "pull"])
def test_every_option_and_argument_of_a_command_is_explained(command: str) -> None:
    for parameter in typer.main.get_command(make_app()).commands[command].params:  # type: ignore[attr-defined]
        assert parameter.help, parameter.name


def test_an_address_in_use_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--port", str(port))
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert line == (
        f"takt: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "choose another with --host or --port"
    )


def test_missing_model_names_what_there_is(call: Callable[..., Ended]) -> None:
    result = call("generate", "smollm2-136m", "x")
    assert result.returncode == 2
    assert "smollm2-135m" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cache_that_cannot_be_written_is_named(
    call: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path / "file" / "cache"))
    for arguments in (["pull", "smollm2-135m"], ["pull", "a/b"], ["topo", "--measure"]):
        result = call(*arguments)
        assert result.returncode == 2, arguments
        (line,) = result.stderr.strip().splitlines()
        assert "TAKT_CACHE" in line


@pytest.mark.parametrize("dtype", ["half", "float"])
def test_types_have_their_names_in_c_too(call: Callable[..., Ended], dtype: str) -> None:
    assert ModelConfigOptions(dtype=dtype).dtype == {"half": "float16", "float": "float32"}[dtype]
    assert "no such file" in call("generate", "./missing", "x", "--dtype", dtype).stderr
