import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from takt.cli import plan, simulate
from takt.errors import ConfigError

BRIEF = [
    "plan",
    "llama-3-70b",
    *("--hardware", "16xA100-80G", "--qps", "8", "--isl", "512", "--osl", "128"),
    *("--slo-itl-p99-ms", "3.7", "--slo-e2e-p99-ms", "3.7"),
]
HOLDS = ["plan", "qwen3-1.7b", "--qps", "4", "--osl", "8", "--slo-itl-p99-ms", "6"]
SIMULATE = ["simulate", "qwen3-1.7b", "--num-requests", "120", "--osl", "32"]
SIMULATE += ["--num-processes", "1"]


def run(*arguments: str) -> Result:
    app = typer.Typer()
    plan.register(app)
    simulate.register(app)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


def test_the_brief_prints_its_bounds_and_ends_with_1() -> None:
    result = run(*BRIEF)
    assert result.exit_code == 1
    for words in ("PHYSICAL_NO", "34.1 ms", "35 ms", "4.50 s", "--slo-itl-p99-ms", "4.26 ms"):
        assert words in result.output


def test_json_holds_the_same_figures() -> None:
    report = json.loads(run(*BRIEF, "--json").output)
    assert report["verdict"] == "PHYSICAL_NO"
    (planned,) = [
        t
        for t in report["topologies"]
        if (t["tensor_parallel_size"], t["pipeline_parallel_size"], t["data_parallel_size"])
        == (2, 4, 2)
    ]
    assert planned["bounds_ms"]["weight_read"] == pytest.approx(34.1, abs=0.05)
    assert planned["bounds_ms"]["token_with_latency"] == pytest.approx(35.0, abs=0.1)
    assert planned["bounds_ms"]["e2e_with_latency"] == pytest.approx(4500, abs=20)
    assert "--tensor-parallel-size 2 --pipeline-parallel-size 4" in planned["takt_command"]


def test_a_plan_that_holds_prints_both_command_lines_and_ends_with_0() -> None:
    result = run(*HOLDS)
    assert result.exit_code == 0
    assert "HOLD" in result.output
    assert "takt serve Qwen/Qwen3-1.7B" in result.output
    assert "vllm serve Qwen/Qwen3-1.7B" in result.output
    assert "--max-num-batched-tokens" in result.output


@pytest.mark.parametrize(
    ("asked", "of_takt", "of_vllm"),
    [("auto", "bfloat16", None), ("fp8", "fp8", "fp8"), ("int8", "int8", None)],
)
def test_command_lines_name_the_kv_that_was_planned(
    asked: str, of_takt: str, of_vllm: str | None
) -> None:
    """Takt's own choice goes by the weights that it makes; vLLM has no KV in int8."""
    report = json.loads(run(*HOLDS, "--kv-cache-dtype", asked, "--json").output)
    (best, *_) = report["topologies"]
    assert f"--kv-cache-dtype {of_takt}" in best["takt_command"]
    has_note = any("vLLM has no int8 KV" in note for note in best["command_notes"])
    assert has_note == (asked == "int8")
    if of_vllm is None:
        assert "--kv-cache-dtype" not in best["vllm_command"]
    else:
        assert f"--kv-cache-dtype {of_vllm}" in best["vllm_command"]


@pytest.mark.parametrize("arguments", [HOLDS, BRIEF], ids=["holds", "brief"])
def test_charts_are_well_formed(tmp_path: Path, arguments: list[str]) -> None:
    svg = tmp_path / "chart.svg"
    run(*arguments, "--chart", str(svg))
    root = ElementTree.parse(svg).getroot()
    assert root.tag.endswith("svg")
    text = svg.read_text()
    assert "nan" not in text and "inf" not in text
    page = tmp_path / "chart.html"
    run(*arguments, "--chart", str(page))
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "llama3-70", "--qps", "1", "--slo-itl-p99-ms", "5"], "nearest: llama-3-70b"),
        (["plan", "llama-3-8b", "--qps", "nan", "--slo-itl-p99-ms", "5"], "--qps"),
        (["plan", "llama-3-8b", "--qps", "0", "--slo-itl-p99-ms", "5"], "--qps"),
        (["plan", "llama-3-8b", "--qps", "1"], "no target is given"),
        (["plan", "llama-3-8b", "--qps", "1", "--slo-itl-p99-ms", "-5"], "--slo-itl-p99-ms"),
        ([*HOLDS, "--hardware", "2xH20"], "nearest: H200"),
        ([*HOLDS, "--dtype", "int5"], "nearest: int"),
        ([*HOLDS, "--chart", "chart.png"], "neither .svg nor .html"),
        ([*HOLDS, "--chart", "/nowhere/chart.svg"], "cannot be written"),
        ([*HOLDS, "--hardware-file", "/nowhere/x.toml"], "cannot be read"),
        (SIMULATE, "either --qps or --trace"),
        ([*SIMULATE, "--qps", "1", "--kv-io", "asink"], "nearest: async"),
        ([*SIMULATE, "--qps", "1", "--replications", "0"], "replications"),
        ([*SIMULATE, "--qps", "1", "--seed", "-1"], "seed must be at least 0"),
        ([*SIMULATE, "--qps", "1", "--kv-reservation", "ful"], "nearest: full"),
        ([*SIMULATE, "--qps", "1", "--max-num-batched-tokens", "8"], "less than"),
        (["simulate", "llama-3-70b", "--hardware", "1xL40S", "--qps", "1"], "does not fit"),
    ],
)
def test_mistakes_are_errors_that_name_them(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)  # which `takt` ends with exit code 2
    assert said in str(result.exception)


def test_simulate_prints_both_ways_of_moving_kv() -> None:
    result = run(*SIMULATE, "--qps", "20", "--kv-io", "both", "--replications", "2")
    assert result.exit_code == 0
    for words in ("sync KV transfers", "async KV transfers", "ITL P99, ms", "refused, %", "±"):
        assert words in result.output
    assert "_" not in result.output


def test_simulate_replays_a_trace_as_json(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(
            f'{{"arrival_s": {i * 0.05}, "num_prompt_tokens": 100, "num_output_tokens": 10}}\n'
            for i in range(40)
        )
    )
    result = run(*SIMULATE, "--trace", str(trace), "--json", "--replications", "1")
    report = json.loads(result.output)
    metrics = report["results"]["no KV transfers"]
    assert metrics["ttft_p99_ms"]["mean"] > 0
    assert metrics["ttft_p99_ms"]["low"] is None
    assert report["request"]["trace"] == str(trace)
