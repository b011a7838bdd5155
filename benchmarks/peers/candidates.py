"""The engines, and for each the settings that are tried."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.native_programs import num_cpus
from benchmarks.cpu.takt_server import STOP_SECONDS, takt_server
from benchmarks.peers import environments
from benchmarks.peers.engine import Engine, EngineError
from benchmarks.peers.http_engine import HttpEngine
from benchmarks.peers.worker_engine import WorkerEngine
from benchmarks.peers.workload import CONTEXT_TOKENS, MANY_STREAMS, PARTS


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run an engine. `parts` are those it can take."""

    label: str
    start: Callable[[], Engine]
    parts: tuple[str, ...] = PARTS


def takt(model: str) -> list[Candidate]:
    """Its defaults, and what it offers for many streams."""

    def candidate(arguments: list[str], parts: tuple[str, ...] = PARTS) -> Candidate:
        def start() -> Engine:
            stack = contextlib.ExitStack()
            try:
                server = stack.enter_context(takt_server(model, arguments))
            except RuntimeError as error:
                raise EngineError(str(error)) from None
            return HttpEngine(server.url, model, server.process.pid, stack.close)

        return Candidate(f"{' '.join(arguments) or 'defaults'}, over HTTP", start, parts)

    many = ["--decode-activation-dtype", "bfloat16"]
    return [candidate([]), candidate(many, ("many_streams",))]


def llama_cpp(source: Path, is_quick: bool) -> list[Candidate]:
    def candidate(weights: str, flash_attn: int, **more: Any) -> Candidate:
        settings = {
            "n_batch": 512,
            "n_ubatch": 512,
            "kv": "f16",
            "kv_unified": False,
            "threads": num_cpus(),
            "streams": MANY_STREAMS,
            "context_tokens": MANY_STREAMS * CONTEXT_TOKENS,
            "flash_attn": flash_attn,
            **more,
        }

        def start() -> Engine:
            path = environments.llama_cpp_model(source, weights)
            python = environments.LLAMA_CPP.python
            return WorkerEngine(python, "llama_cpp_worker.py", {**settings, "path": str(path)})

        extra = "".join(f", {name} {value}" for name, value in more.items())
        return Candidate(
            f"{weights}, flash attention {'on' if flash_attn else 'off'}{extra}", start
        )

    few = [candidate("Q4_0", 1), candidate("Q4_0", 0)]
    if is_quick:
        return few
    return [
        *few,
        *(candidate(weights, flash) for weights in ("file", "Q4_0 pure") for flash in (1, 0)),
        candidate("Q4_0", 1, n_ubatch=128),
        candidate("Q4_0", 1, kv_unified=True),
        candidate("Q4_0 pure", 1, kv="q8_0"),
        candidate("Q4_0 pure", 1, n_batch=2048, n_ubatch=2048),
    ]


def openvino(source: Path, is_quick: bool) -> list[Candidate]:
    def candidate(weights: str, pipeline: str, budget: int = 512, **properties: Any) -> Candidate:
        settings = {
            "pipeline": pipeline,
            "max_num_batched_tokens": budget,
            "streams": MANY_STREAMS,
            "cache_gib": 1,
            "properties": {"PERFORMANCE_HINT": "LATENCY", **properties},
        }

        def start() -> Engine:
            path = environments.openvino_model(source, weights)
            python = environments.OPENVINO.python
            return WorkerEngine(python, "openvino_worker.py", {**settings, "path": str(path)})

        extra = "".join(f", {name} {value}" for name, value in properties.items())
        label = f"{weights}, {pipeline}, {budget} tokens a step{extra}"
        if pipeline == "stateful":
            return Candidate(f"{weights}, stateful{extra}", start, ("one_stream", "prefill"))
        return Candidate(label, start)

    few = [candidate("Q4_0", "continuous"), candidate("Q4_0", "stateful")]
    if is_quick:
        return few
    group = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
    return [
        *few,
        candidate("file", "continuous"),
        candidate("Q4_0", "continuous", budget=256),
        candidate("Q4_0", "continuous", budget=1024),
        candidate("Q4_0", "continuous", **group),
        candidate("Q4_0", "continuous", KV_CACHE_PRECISION="f16"),
        candidate("Q4_0", "continuous", INFERENCE_PRECISION_HINT="f32"),
        candidate("Q4_0", "stateful", **group),
    ]


def vllm(source: Path) -> list[Candidate]:
    """bf16 on all CPUs, without prefix caching."""

    def start() -> Engine:
        return _start_vllm(environments.vllm_model(source))

    return [Candidate("bf16", start)]


def _start_vllm(folder: Path) -> Engine:
    log = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115  (closed with the server)
    port = 18_650
    command = [environments.VLLM.python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--port", str(port), "--dtype", "bfloat16"]
    command += ["--max-model-len", "2048", "--no-enable-prefix-caching"]
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    variables = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": cpus}
    process = subprocess.Popen(
        command, stdout=log, stderr=log, env={**os.environ, **variables, "HF_HUB_OFFLINE": "1"}
    )

    def stop() -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()

    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        if re.search(r"Application startup complete", Path(log.name).read_text()):
            url = f"http://127.0.0.1:{port}"
            return HttpEngine(url, str(folder), process.pid, stop)
        time.sleep(0.5)
    words = Path(log.name).read_text()[-1000:]
    stop()
    raise EngineError(f"vLLM did not start: {words}")
