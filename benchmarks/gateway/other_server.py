"""The gateway in front of a server not ours: `transformers serve`, with a tiny random model.

Its answers are sampled, so that two executions of a request hardly ever give the same text.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
from benchmarks.gateway.processes import Process, Rig, free_port, rig

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
START_SECONDS = 180.0
NUM_COPIES = 10

_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def make_model(folder: Path) -> str:
    """A Llama of two layers over bytes, in Hugging Face's files."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {byte: i + 2 for i, byte in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = _TEMPLATE
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=512,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


def _transformers_serve(made: Rig, model: str) -> Process:
    port = free_port()
    command = [
        *(sys.executable, "-m", "transformers.cli.transformers", "serve", model),
        *("--port", str(port), "--device", "cpu", "--log-level", "error"),
    ]
    return made.add(command, "other", "/health", port)


async def run() -> bool:
    """Prints what held; True if all did."""
    with rig() as made:
        model = make_model(made.directory / "model")
        other = _transformers_serve(made, model)
        other.start(wait=False)
        other.wait_ready(START_SECONDS)
        policy = made.directory / "policy.toml"
        policy.write_text(f'[[upstreams]]\nurl = "{other.url}"\nsends_done = false\n')
        store = f"sqlite:///{made.directory}/store.db"
        gateway = made.gateway(store, "--policy", str(policy), "--health-interval-ms", "200")
        gateway.start()
        async with aiohttp.ClientSession() as session:
            client = _Client(session, gateway.url, model)
            results = {
                "a chat, streamed and replayed": await _replayed(client, CHAT, stream=True),
                "a chat, whole and replayed": await _replayed(client, CHAT, stream=False),
                "a completion, streamed and replayed": await _replayed(client, TEXT, stream=True),
                "another body is refused": await _refused(client),
                f"{NUM_COPIES} copies at once, one answer": await _copies(client),
                "tried again while the server starts anew": await _restarted(client, other),
            }
    for what, holds in results.items():
        print(f"transformers serve: {what}: {'yes' if holds else 'NO'}")
    return all(results.values())


class _Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = url
        self._model = model

    async def ask(
        self, key: str, path: str, *, stream: bool = False, text: str = "hello"
    ) -> tuple[int, bytes, bool]:
        """Status, body, and whether it is a replay."""
        content: dict[str, object] = {"prompt": text}
        if path == CHAT:
            content = {"messages": [{"role": "user", "content": text}]}
        body = {
            **content,
            "model": self._model,
            "max_tokens": 24,
            "temperature": 1.0,
            "stream": stream,
        }
        async with self._session.post(
            self._url + path, json=body, headers={"Idempotency-Key": key}
        ) as response:
            answer = await response.read()
            return response.status, answer, "Idempotency-Replayed" in response.headers


async def _replayed(client: _Client, path: str, *, stream: bool) -> bool:
    key = f"replay{path}{stream}"
    first, second = [await client.ask(key, path, stream=stream) for _ in range(2)]
    other = await client.ask(key + "-other", path, stream=stream)
    is_whole = first[1].startswith(b"data: ") if stream else "choices" in json.loads(first[1])
    return (
        first[0] == second[0] == 200
        and is_whole
        and first[1] == second[1] != other[1]
        and (first[2], second[2]) == (False, True)
    )


async def _refused(client: _Client) -> bool:
    first = await client.ask("body", CHAT, text="one")
    second = await client.ask("body", CHAT, text="two")
    return (first[0], second[0]) == (200, 422)


async def _copies(client: _Client) -> bool:
    answers = await asyncio.gather(*(client.ask("storm", CHAT) for _ in range(NUM_COPIES)))
    return {status for status, _, _ in answers} == {200} and len({b for _, b, _ in answers}) == 1


async def _restarted(client: _Client, other: Process) -> bool:
    other.kill()
    asked = asyncio.create_task(client.ask("restart", CHAT))
    await asyncio.sleep(0.5)
    other.start(wait=False)
    await asyncio.to_thread(other.wait_ready, START_SECONDS)
    status, body, _ = await asked
    again = await client.ask("restart", CHAT)
    return status == again[0] == 200 and body == again[1]
