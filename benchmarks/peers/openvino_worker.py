"""OpenVINO GenAI in this process: its continuous batching pipeline, stepped; or the plain one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai
from worker_io import serve


class ContinuousBatching:
    def __init__(self, settings: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = settings["max_num_batched_tokens"]
        scheduler.max_num_seqs = settings["streams"]
        scheduler.cache_size = settings["cache_gib"]
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings["path"], scheduler, "CPU", properties=settings["properties"]
        )
        self._handles: dict[int, tuple[Any, int]] = {}
        self._num_added = 0

    def add(self, slot: int, prompt: list[int], num_output: int) -> None:
        tokens = openvino.Tensor(np.array([prompt], dtype=np.int64))
        handle = self._pipeline.add_request(self._num_added, tokens, greedy(num_output))
        self._num_added += 1
        self._handles[slot] = (handle, num_output)

    def step(self) -> tuple[list[int], list[int]]:
        self._pipeline.step()
        advanced, ended = [], []
        for slot, (handle, num_left) in list(self._handles.items()):
            if not handle.can_read():
                continue
            (output,) = handle.read().values()
            num_left -= len(output.generated_ids)
            advanced += [slot] * len(output.generated_ids)
            self._handles[slot] = (handle, num_left)
            if num_left == 0:
                ended.append(slot)
                del self._handles[slot]
        return advanced, ended


class Stateful:
    """The plain pipeline: one request at a time, its tokens stamped by a streamer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._pipeline = openvino_genai.LLMPipeline(
            settings["path"], "CPU", ATTENTION_BACKEND="SDPA", **settings["properties"]
        )

    def generate(self, prompt: list[int], num_output: int) -> dict[str, Any]:
        stamps: list[int] = []

        def on_token(token: int) -> Any:
            stamps.append(time.monotonic_ns())
            return openvino_genai.StreamingStatus.RUNNING

        tokens = openvino.Tensor(np.array([prompt], dtype=np.int64))
        start_ns = time.monotonic_ns()
        self._pipeline.generate(tokens, greedy(num_output), TokenStreamer(on_token))
        return {"start_ns": start_ns, "stamps": stamps}


class TokenStreamer(openvino_genai.StreamerBase):
    """Calls back for each token, without making text of it."""

    def __init__(self, on_token: Any) -> None:
        super().__init__()
        self._on_token = on_token

    def write(self, token: Any) -> Any:
        status = None
        for one in token if isinstance(token, list) else [token]:
            status = self._on_token(one)
        return status

    def end(self) -> None:
        pass


def greedy(num_output: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_output
    config.min_new_tokens = num_output
    config.ignore_eos = True
    config.do_sample = False
    return config


def convert(settings: dict[str, Any]) -> None:
    """Reads a GGUF file; the pipeline leaves its own form beside it."""
    openvino_genai.LLMPipeline(settings["path"], "CPU", enable_save_ov_model=True)


def load(settings: dict[str, Any]) -> Any:
    if settings.get("convert"):
        return convert(settings)
    return (
        Stateful(settings) if settings["pipeline"] == "stateful" else ContinuousBatching(settings)
    )


if __name__ == "__main__":
    serve(load)
