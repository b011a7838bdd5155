"""The server as a process: start, drain, stop, and the deaths of its engine."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_serve
import httpx
import psutil
import pytest
from served_process import ServedProcess, served_process, wait_for_status

from takt.config import ServerOptions
from takt.errors import ConfigError
from takt.observe.step_log import read_step_log
from takt.server import serve as serving

SCRIPT = Path(__file__).with_name("fake_serve.py")
LONG = {"prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True}


@contextmanager
def served(behaviour: str = "fake", **options: object) -> Iterator[ServedProcess]:
    options.setdefault("port", 0)
    arguments = [f"{name}={value}" for name, value in options.items()]
    with served_process(str(SCRIPT), behaviour, *arguments) as server:
        yield server


def test_announces_itself_serves_and_stops_with_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKT_API_KEY", "secret")
    with served() as server:
        url = server.url()
        assert "curl" in server.read_until("curl").group()
        body = {"prompt": "a", "model": "fake"}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"].startswith(" w")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_the_step_log_holds_the_steps_of_a_request(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with served(step_log=path) as server:
        url = server.url()
        body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    steps = read_step_log(path)
    assert sum(step.num_prefill_tokens for step in steps) >= 3
    assert sum(step.num_decode_seqs for step in steps) == 4
    assert all(step.schedule_start_ns < step.update_end_ns for step in steps)


def test_a_step_log_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with served(step_log=tmp_path / "none" / "log") as server:
        assert server.end() == 2
        assert "--step-log" in server.last_line


def test_signal_while_the_model_loads_stops_at_once() -> None:
    with served("fake:load-forever") as server:
        server.read_until("loading starts")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_sigterm_lets_running_requests_end_and_refuses_new_ones(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with served(f"fake:hold={hold}") as server:
        url = server.url()
        with httpx.stream("POST", f"{url}/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            wait_for_status(f"{url}/health", 503)
            refused = httpx.post(f"{url}/v1/completions", json={"prompt": "b"})
            assert refused.status_code == 503
            assert "stopping" in refused.json()["error"]["message"]
            hold.unlink()
            texts = [line for line in lines if line]
        assert len(texts) == 200
        assert texts[-1] == "data: [DONE]"
        assert json.loads(texts[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert server.end() == 0


@pytest.mark.parametrize("by_signal", [True, False], ids=["second signal", "time is up"])
def test_what_still_runs_when_the_drain_ends_gets_an_error_event(
    by_signal: bool, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    timeout = 600.0 if by_signal else 0.1
    with served(f"fake:hold={hold}", drain_timeout_seconds=timeout) as server:
        url = server.url()
        with httpx.stream("POST", f"{url}/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            if by_signal:
                wait_for_status(f"{url}/health", 503)
                server.process.send_signal(signal.SIGINT)
            texts = [line for line in lines if line]
        assert len(texts) == 2, "an error and the end"
        assert json.loads(texts[-2][6:])["error"]["type"] == "service_unavailable_error"
        assert server.end() == 0


def test_engine_death_is_an_error_event_and_then_service_returns(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with served(f"fake:hold={hold}") as server:
        url = server.url()
        with httpx.stream("POST", f"{url}/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            kill_engine(server)
            error, done = [line for line in lines if line]
        hold.unlink()
        assert "engine died" in json.loads(error.removeprefix("data: "))["error"]["message"]
        assert done == "data: [DONE]"
        wait_for_status(f"{url}/health", 200)
        again = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert again.status_code == 200
        assert re.search(r"takt_engine_restarts_total\{.*\} 1\.0", httpx.get(f"{url}/metrics").text)
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 0


def kill_engine(server: ServedProcess) -> None:
    (engine,) = (
        child
        for child in psutil.Process(server.process.pid).children()
        if any("fake_engine_process" in word for word in child.cmdline())
    )
    engine.kill()


def test_three_deaths_in_a_row_end_the_server_with_one_line() -> None:
    with served("fake:die-after=1") as server:
        url = server.url()
        for _ in range(3):
            wait_for_status(f"{url}/health", 200)
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
            assert answer.status_code == 503
        assert server.end() == 1
        assert server.last_line.startswith("takt: the engine died 3 times in a row")


@pytest.fixture
def serve_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str]]]:
    """Runs a server that cannot start in this process; gives its exit code and lines."""
    for name in ("load_text_side", "ProcessEngineClient"):
        monkeypatch.setattr(serving, name, getattr(serving, name))
    monkeypatch.setattr("sys.setswitchinterval", lambda seconds: None)

    def run(behaviour: str, **options: object) -> tuple[int, list[str]]:
        options.setdefault("port", 0)
        code = fake_serve.main(behaviour, *(f"{name}={value}" for name, value in options.items()))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        return code, capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize(
    ("behaviour", "options", "code", "line"),
    [
        ("fake:die-at-start", {}, 1, "takt: the engine died 3 times in a row"),
        ("fake:refuse", {}, 2, "takt: --max-model-len 9 is wrong"),
        ("fake", {"chat_template": "{{"}, 2, "takt: the chat template of --chat-template has"),
        ("fake", {"ssl_certfile": "/no", "ssl_keyfile": "/no"}, 2, "takt: TLS with"),
        ("fake", {"host": "host.invalid"}, 2, "takt: cannot listen on host.invalid port 0"),
        ("fake", {"uds": "/no/such/dir/x"}, 2, "takt: --uds /no/such/dir/x: its directory"),
        ("fake", {"uds": "/tmp/" + "x" * 103}, 2, "takt: --uds has 108 bytes"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    serve_here: Callable[..., tuple[int, list[str]]],
    behaviour: str,
    options: dict[str, str],
    code: int,
    line: str,
) -> None:
    returned, lines = serve_here(behaviour, **options)
    assert returned == code
    assert lines[-1].startswith(line)
    assert not any("Traceback" in text for text in lines)


def test_port_in_use_is_one_line_and_comes_at_once(
    serve_here: Callable[..., tuple[int, list[str]]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, lines = serve_here("fake:die-at-start", port=port)
    assert code == 2
    assert len(lines) == 1
    assert f"port {port}" in lines[0]


def test_unix_socket_is_served_and_removed(
    tmp_path: Path, serve_here: Callable[..., tuple[int, list[str]]]
) -> None:
    path = tmp_path / "takt.sock"
    with served(uds=path) as server:
        server.read_until("Serving on")
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://takt") as http:
            assert http.get("/health").status_code == 200
        code, lines = serve_here("fake", uds=path)
        assert code == 2
        assert "another server" in lines[-1]
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    assert not path.exists()


def test_file_of_the_users_is_never_taken_for_a_socket(
    tmp_path: Path, serve_here: Callable[..., tuple[int, list[str]]]
) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    code, lines = serve_here("fake", uds=path)
    assert code == 2
    assert "no socket" in lines[-1]
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "options",
    [
        {"port": -1},
        {"port": 99999},
        {"api_key": ("",)},
        {"served_model_name": ("a", "")},
        {"max_request_bytes": 0},
        {"stream_buffer_tokens": 0},
        {"max_engine_deaths": 0},
        {"drain_timeout_seconds": -1.0},
        {"drain_timeout_seconds": float("nan")},
        {"log_level": "loud"},
    ],
)
def test_options_that_cannot_work_are_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} "):
        ServerOptions(**options)
