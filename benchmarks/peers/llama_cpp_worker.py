"""llama.cpp in this process, through its batch API, with the batching that its server does.

Decodes first, then prompts in order, as much as a batch holds; greedy.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
from worker_io import serve

FORMATS = {"Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
KV_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}


@dataclass(slots=True)
class Sequence:
    tokens: list[int]
    """The prompt, then the token to compute next."""
    num_computed: int
    num_left: int


class LlamaCpp:
    def __init__(self, settings: dict[str, Any]) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.use_extra_bufts = True  # repacked weights
        path = settings["path"].encode()
        self._model = llama_cpp.llama_model_load_from_file(path, model_params)
        if not self._model:
            raise RuntimeError(f"{path!r} was not loaded")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings["context_tokens"]
        params.n_batch = self._max_batch = settings["n_batch"]
        params.n_ubatch = settings["n_ubatch"]
        params.n_seq_max = settings["streams"]
        params.n_threads = params.n_threads_batch = settings["threads"]
        params.flash_attn_type = settings["flash_attn"]
        params.type_k = params.type_v = KV_TYPES[settings["kv"]]
        params.kv_unified = settings["kv_unified"]
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("no context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(self._max_batch, 0, 1)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._running: dict[int, Sequence] = {}

    def add(self, slot: int, prompt: list[int], num_output: int) -> None:
        self._running[slot] = Sequence(list(prompt), 0, num_output)

    def step(self) -> tuple[list[int], list[int]]:
        sampled = self._fill()
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        ended = []
        for row, slot in sampled:
            sequence = self._running[slot]
            sequence.tokens.append(self._best(row))
            sequence.num_left -= 1
            if sequence.num_left == 0:
                ended.append(slot)
        for slot in ended:
            del self._running[slot]
            llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return [slot for _, slot in sampled], ended

    def _fill(self) -> list[tuple[int, int]]:
        """Fills the batch; returns (row, slot) of each sequence that gets a token."""
        batch, n, sampled = self._batch, 0, []
        # Least left to compute first: decodes, prompts that have begun, others as they came.
        order = sorted(self._running.items(), key=lambda s: len(s[1].tokens) - s[1].num_computed)
        for slot, sequence in order:
            todo = sequence.tokens[sequence.num_computed :][: self._max_batch - n]
            for token in todo:
                batch.token[n] = token
                batch.pos[n] = sequence.num_computed
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = slot
                batch.logits[n] = 0
                sequence.num_computed += 1
                n += 1
            if todo and sequence.num_computed == len(sequence.tokens):
                batch.logits[n - 1] = 1
                sampled.append((n - 1, slot))
        batch.n_tokens = n
        return sampled

    def _best(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, (self._vocab_size,)).argmax())


def requantise(settings: dict[str, Any]) -> None:
    """Writes `path` from `source` in another format, unless it is there."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMATS[settings["requantise"]]
    params.allow_requantize = True
    params.pure = settings["pure"]
    params.nthread = settings["threads"]
    status = llama_cpp.llama_model_quantize(
        settings["source"].encode(), settings["path"].encode(), ctypes.byref(params)
    )
    if status != 0:
        raise RuntimeError(f"llama_model_quantize gave {status}")


def load(settings: dict[str, Any]) -> Any:
    if "requantise" in settings:
        return requantise(settings)
    return LlamaCpp(settings)


if __name__ == "__main__":
    serve(load)
