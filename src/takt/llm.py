"""The offline API: a model in this process, prompts in, texts out."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from takt.clock import MonotonicClock
from takt.completion import Completion, CompletionOutput
from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
)
from takt.engine.build import build_core
from takt.engine.interrupt import deferred_interrupt
from takt.engine.load import load_model_and_tokenizer
from takt.engine.messages import AddRequest, RequestOutput
from takt.engine.requests import with_seed
from takt.engine.text import TextStream, stop_strings
from takt.errors import ConfigError, InvalidRequestError
from takt.loading.base import Tokenizer
from takt.types.kv import KVCacheSpec
from takt.types.sampling_params import SamplingParams

if TYPE_CHECKING:
    from takt.server.chat import ChatRenderer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
OnProgress = Callable[[str, int, int], None]


class LLM:
    """An engine without a server, used from one thread.

    `options` are the engine's flags with underscores, such as `max_num_seqs=64`; unknown ones and
    values that cannot work raise `ConfigError`, a model that cannot be loaded `ModelError`.
    Close it, or use it in a `with` statement, to end its threads and free its memory.
    """

    def __init__(self, model: str = "smollm2-135m", **options: Any) -> None:
        self._start(_engine_config({"model": model, **options}), None)

    @classmethod
    def from_config(cls, config: EngineConfig, on_progress: OnProgress | None = None) -> Self:
        """`on_progress` is called with a stage, what is done of it and the total (0: unknown)."""
        llm = cls.__new__(cls)
        llm._start(config, on_progress)
        return llm

    def _start(self, config: EngineConfig, on_progress: OnProgress | None) -> None:
        model, self._tokenizer = load_model_and_tokenizer(config, on_progress)
        self._weight_bytes = model.weight_bytes
        self._core = build_core(config, model, MonotonicClock())
        self._numbers = itertools.count()
        self._renderer: ChatRenderer | None = None
        self._is_closed = False

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices."""
        return self._weight_bytes

    @property
    def precision(self) -> str:
        """The precision policy and what it gave this model, in one line."""
        return self._core.precision

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def kv_cache(self) -> KVCacheSpec:
        """What a block of the KV cache holds, and its bytes."""
        return self._core.sizes.kv

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Completes prompts, together; answers come in their order.

        A prompt is a text, which gets the model's begin token and may hold written markers, or a
        list of token ids, taken as it is. `params` is one for all, or one for each. Raises
        `InvalidRequestError` if one of the prompts can never be served.
        """
        runs = [
            self._make_run(token_ids, text, each)
            for (token_ids, text), each in _paired(self._encode_all(prompts), params)
        ]
        self._run(runs)
        return [run.completion for run in runs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Completion]:
        """Answers one chat or several, rendered with the model's chat template."""
        is_one = not messages or isinstance(messages[0], Mapping)
        chats: Any = [messages] if is_one else messages
        encoded: list[tuple[list[int], str | None]] = [
            (self._render(chat, add_generation_prompt, chat_template_kwargs), None)
            for chat in chats
        ]
        runs = [self._make_run(ids, text, each) for (ids, text), each in _paired(encoded, params)]
        self._run(runs)
        return [run.completion for run in runs]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[str, None, None]:
        """Yields the text of one completion as it comes; closing the generator ends the request."""
        ((token_ids, text),) = self._encode_all(prompt)
        return self._stream(token_ids, text, params)

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[str, None, None]:
        """Like `stream`, for a chat."""
        return self._stream(self._render(messages, True, None), None, params)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- running ------------------------------------------------------------------------------

    def _stream(
        self, token_ids: list[int], text: str | None, params: SamplingParams | None
    ) -> Generator[str, None, None]:
        sampling = params or SamplingParams()
        if sampling.n != 1:
            raise InvalidRequestError(f"n is {sampling.n}; a stream has one choice", param="n")
        run = self._make_run(token_ids, text, sampling)
        num_sent = 0
        output = run.completion.outputs[0]
        with _Session(self, [run]) as session:
            while session.advance():
                if len(output.text) > num_sent:
                    yield output.text[num_sent:]
                    num_sent = len(output.text)

    def _run(self, runs: list[_Run]) -> None:
        with _Session(self, runs) as session:
            while session.advance():
                pass

    def _make_run(self, token_ids: list[int], text: str | None, params: SamplingParams) -> _Run:
        if self._is_closed:
            raise RuntimeError("this LLM is closed")
        return _Run(str(next(self._numbers)), token_ids, text, params, self._tokenizer)

    def _encode_all(self, prompts: Prompt | Sequence[Prompt]) -> list[tuple[list[int], str | None]]:
        is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        each_prompt: Any = [prompts] if is_one else prompts
        return [
            (self._tokenizer.encode(prompt, parse_special=True, add_bos=True), prompt)
            if isinstance(prompt, str)
            else (list(prompt), None)
            for prompt in each_prompt
        ]

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any] | None,
    ) -> list[int]:
        if self._renderer is None:
            # Templates need Jinja, and most programs that complete texts have none.
            from takt.server.chat import ChatRenderer
            from takt.server.chat_template import ChatTemplate

            source = self._tokenizer.chat_template
            template = None if source is None else ChatTemplate(source, "the model's own")
            self._renderer = ChatRenderer(self._tokenizer, template)
        return self._renderer.encode(
            list(messages),
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )


@dataclass(slots=True)
class _Choice:
    output: CompletionOutput
    text: TextStream


class _Run:
    """One prompt on its way: the request, and the completion that grows."""

    def __init__(
        self,
        request_id: str,
        token_ids: list[int],
        text: str | None,
        params: SamplingParams,
        tokenizer: Tokenizer,
    ) -> None:
        sampling = with_seed(params)
        self._sampling = sampling
        self._eos_token_ids = tokenizer.eos_token_ids
        self.request = AddRequest(request_id, token_ids, sampling)
        stop = stop_strings(sampling.stop)
        self._choices = [
            _Choice(
                CompletionOutput(i, logprobs=None if sampling.logprobs is None else []),
                TextStream(
                    tokenizer,
                    stop,
                    sampling.include_stop_str_in_output,
                    sampling.skip_special_tokens,
                    sampling.min_tokens,
                ),
            )
            for i in range(sampling.n)
        ]
        self.completion = Completion(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            outputs=[choice.output for choice in self._choices],
            seed=None if sampling.is_greedy else sampling.seed,
            prompt_logprobs=None if sampling.prompt_logprobs is None else [],
        )

    def take(self, output: RequestOutput) -> bool:
        """Adds what a step brought; True if a stop string ended a choice the engine still runs."""
        if output.finish_reason == "error":
            raise InvalidRequestError(output.error or "refused", param=output.error_param)
        completion, choice = self.completion, self._choices[output.choice]
        if output.num_cached_tokens is not None and output.choice == 0:
            completion.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs and completion.prompt_logprobs is not None:
            completion.prompt_logprobs += output.prompt_logprobs
        result = choice.output
        if result.finish_reason is not None:
            return False
        for token_id in output.token_ids:
            result.token_ids.append(token_id)
            is_hidden = (
                token_id == output.stop_token_id and not self._sampling.include_stop_str_in_output
            )
            if not is_hidden:
                result.text += choice.text.push(token_id)
        if output.logprobs and result.logprobs is not None:
            result.logprobs += output.logprobs
        if output.finish_reason is not None:
            result.text += choice.text.finish()
            self._finish(choice, output.finish_reason, output.stop_token_id)
            return False
        if choice.text.stopped is not None:
            self._finish(choice, "stop", None)
            return True
        return False

    def _finish(self, choice: _Choice, reason: str, stop_token_id: int | None) -> None:
        choice.output.finish_reason = reason
        if choice.text.stopped is not None:
            choice.output.finish_reason = "stop"
            choice.output.stop_reason = choice.text.stopped
        elif (
            stop_token_id in self._sampling.stop_token_ids
            or stop_token_id not in self._eos_token_ids
        ):
            choice.output.stop_reason = stop_token_id


class _Session:
    """Requests that run together; whatever ends the block, none of them is left in the engine."""

    def __init__(self, llm: LLM, runs: list[_Run]) -> None:
        self._core = llm._core
        self._runs = {run.request.request_id: run for run in runs}

    def __enter__(self) -> Self:
        for run in self._runs.values():
            self._core.add(run.request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        open_ids = [i for i, run in self._runs.items() if not run.completion.finished]
        self._core.abort(open_ids)

    def advance(self) -> bool:
        """Makes a step; False when every completion is finished."""
        if all(run.completion.finished for run in self._runs.values()):
            return False
        with deferred_interrupt():
            result = self._core.step()
        for output in result.all_outputs():
            run = self._runs.get(output.request_id)
            if run is not None and run.take(output):
                self._core.abort([output.request_id], output.choice)
        return True


def _paired(
    encoded: list[tuple[list[int], str | None]],
    params: SamplingParams | Sequence[SamplingParams] | None,
) -> list[tuple[tuple[list[int], str | None], SamplingParams]]:
    if params is None or isinstance(params, SamplingParams):
        return [(each, params or SamplingParams()) for each in encoded]
    if len(params) != len(encoded):
        raise InvalidRequestError(
            f"there are {len(params)} sampling parameters for {len(encoded)} prompts"
        )
    return list(zip(encoded, params, strict=True))


def _engine_config(options: dict[str, Any]) -> EngineConfig:
    """Sorts options into the tables they belong to."""
    tables: tuple[Any, ...] = (
        ModelConfigOptions,
        CacheOptions,
        SchedulerOptions,
        ParallelOptions,
    )
    owners = {f.name: table for table in tables for f in fields(table)}
    chosen: dict[Any, dict[str, Any]] = {table: {} for table in tables}
    for name, value in options.items():
        if name not in owners:
            nearest = difflib.get_close_matches(name, owners, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ConfigError(f"there is no option {name}{hint}")
        chosen[owners[name]][name] = value
    model, cache, scheduler, parallel = (table(**chosen[table]) for table in tables)
    return EngineConfig(model=model, cache=cache, scheduler=scheduler, parallel=parallel)
