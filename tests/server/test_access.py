"""Keys, names, CORS, TLS, request ids, health, metrics: what surrounds the answers."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from server_fakes import FakeEngine, FakeServer, fixed_reply

from certificate import self_signed
from takt.config import ServerOptions
from takt.engine.client import EngineState
from takt.engine.messages import PipelineInfo, StepStats
from takt.errors import ConfigError
from takt.server.http_server import PortInUseError, bind_socket, make_http_server
from takt.server.state import Phase


def test_key_is_needed_except_on_open_routes() -> None:
    with (
        FakeServer(api_key=("secret", "other")) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        for path in ("/health", "/version", "/metrics", "/ping"):
            assert http.get(path).status_code == 200
        for value in (None, "Bearer wrong", "Basic secret", "secret", "Bearer \xff", "Bearer"):
            headers = {} if value is None else {"Authorization": value.encode("latin-1")}
            response = http.get("/v1/models", headers=headers)  # type: ignore[arg-type]
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert http.get("/nowhere").status_code == 401
        for key in ("secret", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            assert http.get("/v1/models", headers=headers).status_code == 200


def test_models_are_listed_and_shown(client: openai.OpenAI, model: str) -> None:
    assert [m.id for m in client.models.list()] == [model, "other-name"]
    shown = client.models.retrieve("other-name")
    assert shown.object == "model"
    assert shown.model_extra is not None and shown.model_extra["root"] == model


def test_request_id_is_echoed_or_made(http: httpx.Client) -> None:
    given = http.get("/version", headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = [http.get("/version").headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    unfit = http.get("/version", headers={"X-Request-Id": "a b"})
    assert unfit.headers["x-request-id"] != "a b"
    on_error = http.get("/nowhere", headers={"X-Request-Id": "abc-2"})
    assert on_error.headers["x-request-id"] == "abc-2"


def test_cors_answers_the_allowed_origin_even_without_a_key() -> None:
    origin = "https://app.example"
    with (
        FakeServer(allowed_origins=(origin,), api_key=("secret",)) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = http.options("/v1/completions", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == origin
        other = http.get("/health", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_health_follows_the_engine_and_the_phase(server: FakeServer, http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200
    server.engine.state = EngineState.RESTARTING
    response = http.get("/health")
    assert response.status_code == 503
    assert "retry-after" in response.headers
    server.engine.state = EngineState.READY
    for phase in (Phase.LOADING, Phase.DRAINING):
        server.state.phase = phase
        try:
            assert http.get("/health").status_code == 503
            answer = http.post("/v1/completions", json={"prompt": "a"})
            assert answer.status_code == 503
            assert "retry-after" in answer.headers
            assert http.get("/metrics").status_code == 200
        finally:
            server.state.phase = Phase.SERVING
    assert http.get("/health").status_code == 200


def samples(http: httpx.Client) -> Callable[[str], float]:
    lines = http.get("/metrics").text.splitlines()
    values = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line and line[0] != "#"
    }

    def sample(name: str) -> float:
        found = [v for key, v in values.items() if key.partition("{")[0] == name]
        return sum(found)

    return sample


def test_fault_of_ours_is_500_and_keeps_its_text(
    http: httpx.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refusal = ZeroDivisionError("a secret")
    for stream in (False, True):
        response = http.post("/v1/completions", json={"prompt": "a", "stream": stream})
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.text
    assert "a secret" in caplog.text
    engine.refusal = None
    assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_metrics_count_tokens_gaps_and_ends() -> None:
    engine = FakeEngine(fixed_reply("abcd"))
    with FakeServer(engine) as server, httpx.Client(base_url=server.url) as http:
        for stream in (False, True):
            body = {"prompt": "xyz", "stream": stream, "n": 2}
            assert http.post("/v1/completions", json=body).status_code == 200
        sample = samples(http)
    assert sample("takt_prompt_tokens_total") == 6
    assert sample("takt_generation_tokens_total") == 20
    assert sample("takt_time_to_first_token_seconds_count") == 2
    assert sample("takt_inter_token_latency_seconds_count") == 16
    assert sample("takt_request_time_per_output_token_seconds_count") == 4
    assert sample("takt_request_largest_token_gap_seconds_count") == 4
    assert sample("takt_e2e_request_latency_seconds_count") == 2
    assert sample("takt_request_success_total") == 4


def test_gauges_of_what_runs_fall_when_the_last_request_was_aborted(
    server: FakeServer, http: httpx.Client
) -> None:
    stats = StepStats(*[0] * 7, 0, 0, 3, 2, 1, 5, 10, 0, 0, 0, [], 0)
    server.state.metrics.observe_step(stats)
    assert samples(http)("takt_num_requests_running") == 0
    server.state.num_in_flight += 1
    try:
        server.state.metrics.observe_step(stats)
        sample = samples(http)
    finally:
        server.state.num_in_flight -= 1
    assert sample("takt_num_requests_running") == 3
    assert sample("takt_kv_cache_usage_perc") == 0.5


def test_the_stages_of_a_pipeline_are_shown(engine: FakeEngine, http: httpx.Client) -> None:
    assert http.get("/info").json()["pipeline"] is None
    engine.pipeline = PipelineInfo([10, 8], [0.52, 0.48], "measured", "auto")
    assert http.get("/info").json()["pipeline"] == {
        "stage_layers": [10, 8],
        "stage_shares": [0.52, 0.48],
        "costs": "measured",
        "depth": "auto",
    }


def test_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with FakeServer(ssl_keyfile=str(key), ssl_certfile=str(certificate)) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=server.url, verify=context) as http:
            body = {"prompt": "a", "stream": True}
            assert http.post("/v1/completions", json=body).text.endswith("[DONE]\n\n")


def test_tls_files_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    options = ServerOptions(ssl_keyfile=str(tmp_path / "no"), ssl_certfile=str(tmp_path / "no"))
    with pytest.raises(ConfigError, match="ssl-certfile"):
        make_http_server(lambda scope, receive, send: None, options)  # type: ignore[arg-type,return-value]


def test_port_in_use_names_port_and_way_out(server: FakeServer) -> None:
    with pytest.raises(PortInUseError, match=rf"{server.port}.*--port"):
        bind_socket(ServerOptions(port=server.port))
