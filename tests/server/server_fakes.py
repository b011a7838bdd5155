"""An engine and a tokenizer small enough to know what every answer must be, and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from takt.config import ServerOptions
from takt.engine.client import EngineState, ReplicaStatus
from takt.engine.messages import (
    AddRequest,
    EngineReady,
    PipelineInfo,
    RequestOutput,
    TokenLogprob,
)
from takt.errors import EngineDeadError, InvalidRequestError
from takt.observe.metrics import Metrics
from takt.server.app import build_app
from takt.server.chat import ChatRenderer
from takt.server.chat_template import ChatTemplate
from takt.server.http_server import bind_socket, make_http_server
from takt.server.state import Phase, ServedModel, ServerState, longest_token_chars

MODEL = "fake-model"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

IM_START, IM_END, BOS, THINK = 256, 257, 258, 259


class ByteTokenizer:
    """One token per byte, and four markers. `<think>` is a marker that is no control token."""

    def __init__(self, *, adds_bos: bool = False, template: str | None = CHATML) -> None:
        self.adds_bos = adds_bos
        self.bos_token_id: int | None = BOS
        self.eos_token_id = IM_END
        self.eos_token_ids = frozenset({IM_END})
        self.special_token_ids = frozenset({IM_START, IM_END, BOS})
        self.chat_template = template
        self.vocab_size = 260
        self._markers = {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<bos>": BOS}
        self._markers["<think>"] = THINK

    def special_tokens(self) -> Mapping[str, int]:
        return self._markers

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        ids: list[int] = []
        while text:
            marker = next((m for m in self._markers if parse_special and text.startswith(m)), None)
            ids += [self._markers[marker]] if marker else text[0].encode()
            text = text[len(marker or " ") :]
        if add_bos and self.adds_bos and ids[:1] != [BOS]:
            ids.insert(0, BOS)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == THINK:
            return b"<think>"
        return bytes([token_id]) if token_id < 256 else b""

    def token_text(self, token_id: int) -> str:
        names = {token_id: marker for marker, token_id in self._markers.items()}
        return names.get(token_id) or chr(token_id)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return b"".join(
            self.token_bytes(i) or (b"" if skip_special_tokens else self.token_text(i).encode())
            for i in token_ids
        ).decode(errors="replace")


Reply = Callable[[AddRequest, int], list[int]]


def fixed_reply(text: str | bytes, *, ends: bool = True) -> Reply:
    raw = text.encode() if isinstance(text, str) else text
    return lambda request, choice: [*raw, IM_END] if ends else list(raw)


def seeded_reply(request: AddRequest, choice: int) -> list[int]:
    """A text that depends on seed, choice and prompt alone, without an end."""
    state = hash((request.sampling.seed, choice, *request.prompt_token_ids)) & 0xFFFFFFFF
    result = []
    for _ in range(64):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        result.append(97 + (state >> 16) % 26)
    return result


class FakeEngine:
    """Says what `reply` gives, one token per `pace`; records what it was asked and told."""

    def __init__(self, reply: Reply = seeded_reply) -> None:
        self.reply = reply
        self.state = EngineState.READY
        self.max_model_len = 256
        self.num_kv_tokens = 10_000
        self.pipeline: PipelineInfo | None = None
        self.requests: list[AddRequest] = []
        self.aborted: list[tuple[str, int | None]] = []
        self.num_open = 0
        self.pace_seconds = 0.0
        self.holds_after: int | None = None
        """Outputs of a request after which it stands still until this is None again."""
        self.num_cached_tokens = 0
        self.refusal: Exception | None = None
        self.dies_after: int | None = None

    @property
    def info(self) -> EngineReady:
        return EngineReady(
            epoch=1,
            max_model_len=self.max_model_len,
            vocab_size=260,
            num_kv_tokens=self.num_kv_tokens,
            kv_cache_bytes=0,
            kv_cache_dtype="bfloat16",
            kv_block_size=16,
            kv_num_blocks=[self.num_kv_tokens // 16],
            kv_block_bytes=[0],
            num_threads=1,
            load_seconds=0.0,
            pipeline=self.pipeline,
        )

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return (ReplicaStatus(0, self.state, 0, self.num_open, 0, None, self.info),)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        self.aborted.append((request_id, choice))

    def check(self, requests: Sequence[AddRequest]) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def generate(self, request: AddRequest) -> AsyncIterator[RequestOutput]:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        self.num_open += 1
        try:
            for count, output in enumerate(self._outputs(request)):
                await asyncio.sleep(self.pace_seconds)
                while self._is_held(count) and not self._is_aborted(
                    request.request_id, output.choice
                ):
                    await asyncio.sleep(0.005)
                if self.dies_after is not None and count >= self.dies_after:
                    self.state = EngineState.RESTARTING
                    raise EngineDeadError("the engine died")
                if self._is_aborted(request.request_id, output.choice):
                    output = RequestOutput(request.request_id, output.choice, [])
                    output.finish_reason = "abort"
                yield output
                if self._is_aborted(request.request_id, None):
                    return
        finally:
            self.num_open -= 1

    def _is_held(self, num_outputs: int) -> bool:
        return self.holds_after is not None and num_outputs >= self.holds_after

    def _is_aborted(self, request_id: str, choice: int | None) -> bool:
        return (request_id, None) in self.aborted or (request_id, choice) in self.aborted

    def _outputs(self, request: AddRequest) -> Iterator[RequestOutput]:
        sampling = request.sampling
        replies = [
            self.reply(request, choice)[: sampling.max_tokens] for choice in range(sampling.n)
        ]
        longest = max(map(len, replies))
        if longest == 0:
            yield self._output(request, 0, [], "length", is_first=True)
        for position in range(longest):
            for choice, tokens in enumerate(replies):
                if position < len(tokens):
                    token_id = tokens[position]
                    stops = token_id == IM_END or token_id in sampling.stop_token_ids
                    finish = "length" if position + 1 == len(tokens) else None
                    finish = "stop" if stops else finish
                    output = self._output(
                        request, choice, [token_id], finish, is_first=position == choice == 0
                    )
                    output.stop_token_id = token_id if stops else None
                    yield output

    def _output(
        self,
        request: AddRequest,
        choice: int,
        token_ids: list[int],
        finish: str | None,
        *,
        is_first: bool,
    ) -> RequestOutput:
        sampling = request.sampling
        output = RequestOutput(request.request_id, choice, token_ids, finish_reason=finish)
        if sampling.logprobs is not None:
            output.logprobs = [fake_logprob(i, sampling.logprobs) for i in token_ids]
        if is_first:
            output.num_cached_tokens = self.num_cached_tokens
            if sampling.prompt_logprobs is not None:
                top = sampling.prompt_logprobs
                rest = request.prompt_token_ids[1:]
                output.prompt_logprobs = [None, *(fake_logprob(i, top) for i in rest)]
        return output


def fake_logprob(token_id: int, num_top: int) -> TokenLogprob:
    top = [(token_id, -0.5), *((97 + k, -1.0 - k) for k in range(1, num_top))]
    return TokenLogprob(token_id, -0.5, 1, top[:num_top])


def refuse(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param)


class FakeServer:
    """A real uvicorn server in a thread of its own, around a fake engine."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        tokenizer: ByteTokenizer | None = None,
        *,
        template: str | None = None,
        **options: Any,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.tokenizer = tokenizer or ByteTokenizer()
        options.setdefault("port", 0)
        options.setdefault("disable_access_log", True)
        self.options = ServerOptions(**options)
        self._socket = bind_socket(self.options)
        assert self._socket is not None
        self.port = self._socket.getsockname()[1]
        scheme = "https" if self.options.ssl_certfile else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        source = template or self.tokenizer.chat_template
        chat = ChatRenderer(self.tokenizer, ChatTemplate(source, "test") if source else None)
        metrics = Metrics(CollectorRegistry(), MODEL)
        self.state = ServerState(self.options, metrics)
        self.state.phase = Phase.SERVING
        self.state.model = ServedModel(
            names=(MODEL, "other-name"),
            engine=self.engine,
            tokenizer=self.tokenizer,
            chat=chat,
            created=1,
            max_logprobs=20,
            default_max_tokens=32,
            max_outstanding=4096,
            has_priorities=True,
            keeps_targets=True,
            max_token_chars=longest_token_chars(self.tokenizer),
        )
        self._http = make_http_server(build_app(self.state), self.options)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._http.serve([self._socket]))

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.should_exit = True
        self._http.force_exit = True
        self._thread.join(60)
        self.state.shut_down_pools()
        assert not self._thread.is_alive()

    @property
    def connections(self) -> list[Any]:
        """Those of clients that are there, as the server's own thread has them."""
        return list(self._http.server_state.connections)

    @property
    def is_held_up(self) -> bool:
        """Whether a client does not read what is written to it."""
        return any(each.flow.write_paused for each in self.connections)

    def connect(self, receive_buffer_bytes: int | None = None) -> socket.socket:
        raw = socket.socket()
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        raw.settimeout(60)
        with contextlib.suppress(BaseException):
            raw.connect(("127.0.0.1", self.port))
        return raw
