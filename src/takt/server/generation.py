"""One HTTP request's generation: its prompts and choices, from engine outputs to token events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from takt.engine.client import EngineClient
from takt.engine.messages import AddRequest, RequestOutput, TokenLogprob
from takt.engine.text import TextStream, stop_strings
from takt.errors import EngineDeadError, InvalidRequestError
from takt.loading.base import Tokenizer
from takt.scheduler.slo import NO_SLO, SLO
from takt.server.errors import HttpError, TooLateError
from takt.server.prompts import Prompt
from takt.types.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class PromptRun:
    """One prompt and what the engine said about it so far."""

    prompt: Prompt
    request_id: str
    sampling: SamplingParams
    num_cached_tokens: int = 0
    first_scheduled_ns: int | None = None
    """When the engine first had it in a step, on the clock of the machine."""
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    """One entry per prompt token in the end, if they were asked for."""

    @property
    def has_gaps(self) -> bool:
        """Whether a choice may have a second token."""
        return self.sampling.max_tokens is None or self.sampling.max_tokens > 1


@dataclass(slots=True, eq=False)
class Choice:
    index: int
    """Among the choices of the HTTP request: prompt index x n + number of the choice."""
    run: PromptRun
    number: int
    text: TextStream
    num_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    first_ns: int = 0
    last_ns: int = 0
    largest_gap_ns: int = 0
    last_step: int = -1
    """The engine's step that brought the last token that was written."""
    num_late_gaps: int = 0


@dataclass(slots=True, eq=False)
class TokenEvent:
    """One token of one choice, or its end without one (`token_id` None)."""

    choice: Choice
    token_id: int | None
    delta: str
    """Text that the token released; '' while it is held."""
    text_offset: int
    """Characters of the choice's text in front of the token's own."""
    logprob: TokenLogprob | None
    finish_reason: str | None
    step_id: int = -1
    """The engine's step that brought it."""


class Generation:
    """Runs every prompt of one HTTP request on the engine. `outputs` may be iterated once.

    Each output goes through `read`, and the last one is followed by `check_complete`.

    `max_tokens` is the output limit of each prompt; the rest of `sampling` is common to all.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        *,
        max_tokens: Sequence[int],
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
        slo: SLO = NO_SLO,
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._priority = priority
        self._cache_salt = cache_salt
        self.slo = slo
        self._eos_token_ids = tokenizer.eos_token_ids
        self.request_id = request_id
        self._gone = False
        suffixes = [""] if len(prompts) == 1 else [f"-{i}" for i in range(len(prompts))]
        self.runs = [
            PromptRun(prompt, request_id + suffix, structs.replace(sampling, max_tokens=limit))
            for prompt, suffix, limit in zip(prompts, suffixes, max_tokens, strict=True)
        ]
        stop = stop_strings(sampling.stop)
        self.choices = [
            Choice(
                index=r * sampling.n + number,
                run=run,
                number=number,
                text=TextStream(
                    tokenizer,
                    stop,
                    sampling.include_stop_str_in_output,
                    sampling.skip_special_tokens,
                    sampling.min_tokens,
                ),
            )
            for r, run in enumerate(self.runs)
            for number in range(sampling.n)
        ]
        self._first_choice = {run.request_id: r * sampling.n for r, run in enumerate(self.runs)}

    def abort(self) -> None:
        """The client has gone: ends all that runs; `check_complete` then raises `TooLateError`."""
        self._gone = True
        for run in self.runs:
            self._engine.abort(run.request_id)

    def check_complete(self) -> None:
        """Raises `TooLateError` after `abort`, and `EngineDeadError` if a choice has not ended."""
        if self._gone:
            raise TooLateError
        if any(choice.finish_reason is None for choice in self.choices):
            raise EngineDeadError("the engine ended the request before it was finished")

    def outputs(self) -> OutputIterator:
        """What the engine says of all choices, interleaved; raises what its client raises."""
        if self._gone:
            raise TooLateError
        requests = [
            AddRequest(
                request_id=run.request_id,
                prompt_token_ids=run.prompt.token_ids,
                sampling=run.sampling,
                priority=self._priority,
                cache_salt=self._cache_salt,
                slo_itl_ns=self.slo.itl_ns if run.has_gaps else None,
                slo_ttft_ns=self.slo.ttft_ns,
            )
            for run in self.runs
        ]
        if len(requests) > 1:
            self._engine.check(requests)  # else some would be computed in vain
        streams = [self._engine.generate(request) for request in requests]
        return OutputIterator(streams[0]) if len(streams) == 1 else _MergedOutputs(streams)

    def read(self, output: RequestOutput) -> list[TokenEvent]:
        """One event per token, and one for an end without a token."""
        choice = self.choices[self._first_choice[output.request_id] + output.choice]
        run = choice.run
        if output.num_cached_tokens is not None:
            run.num_cached_tokens = output.num_cached_tokens
            run.first_scheduled_ns = output.first_scheduled_ns
        if output.prompt_logprobs:
            run.logprobs += output.prompt_logprobs
        if choice.finish_reason is not None:
            return []
        if output.finish_reason == "error":
            raise _engine_error(output)
        if output.finish_reason == "abort":
            if self._gone:
                raise TooLateError
            raise EngineDeadError("the request was ended because the server is stopping")
        return self._read_tokens(choice, output)

    def _read_tokens(self, choice: Choice, output: RequestOutput) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        num_tokens = len(output.token_ids)
        for i, token_id in enumerate(output.token_ids):
            logprob = output.logprobs[i] if output.logprobs else None
            finish = output.finish_reason if i + 1 == num_tokens else None
            events.append(self._read_token(choice, token_id, logprob, finish, output))
            if choice.finish_reason is not None:
                return events
        if output.finish_reason is not None:
            offset = choice.text.num_chars
            delta = choice.text.finish()
            self._finish(choice, output.finish_reason, output.stop_token_id)
            events.append(
                TokenEvent(choice, None, delta, offset, None, choice.finish_reason, output.step_id)
            )
        return events

    def _read_token(
        self,
        choice: Choice,
        token_id: int,
        logprob: TokenLogprob | None,
        finish: str | None,
        output: RequestOutput,
    ) -> TokenEvent:
        text = choice.text
        offset = text.num_chars
        choice.num_tokens += 1
        is_hidden = (
            finish == "stop"
            and token_id == output.stop_token_id
            and not self._sampling.include_stop_str_in_output
        )
        delta = "" if is_hidden else text.push(token_id)
        if finish is not None:
            delta += text.finish()
        if text.stopped is not None or finish is not None:
            self._finish(choice, finish or "stop", output.stop_token_id)
            if finish is None:
                self._engine.abort(output.request_id, output.choice)
        return TokenEvent(
            choice, token_id, delta, offset, logprob, choice.finish_reason, output.step_id
        )

    def _finish(self, choice: Choice, reason: str, stop_token_id: int | None) -> None:
        choice.finish_reason = reason
        if choice.text.stopped is not None:
            choice.finish_reason = "stop"
            choice.stop_reason = choice.text.stopped
        elif reason == "stop" and (
            stop_token_id in self._sampling.stop_token_ids
            or stop_token_id not in self._eos_token_ids
        ):
            choice.stop_reason = stop_token_id

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(run.prompt.token_ids) for run in self.runs)

    @property
    def num_generated_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def num_logprobs(self) -> int:
        """Entries of logprobs in the answer, the alternatives counted too."""
        sampling = self._sampling
        of_prompt = sum(len(run.logprobs) for run in self.runs) * (
            1 + (sampling.prompt_logprobs or 0)
        )
        if sampling.logprobs is None:
            return of_prompt
        return of_prompt + self.num_generated_tokens * (1 + sampling.logprobs)

    def usage(self) -> dict[str, object]:
        num_prompt, num_generated = self.num_prompt_tokens, self.num_generated_tokens
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_generated,
            "total_tokens": num_prompt + num_generated,
            "prompt_tokens_details": {
                "cached_tokens": sum(run.num_cached_tokens for run in self.runs)
            },
        }


class OutputIterator:
    """The outputs of one engine request."""

    def __init__(self, stream: AsyncIterator[RequestOutput]) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._stream

    async def aclose(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


class _MergedOutputs(OutputIterator):
    """The outputs of several engine requests, as they come; the first error ends all."""

    def __init__(self, streams: Sequence[AsyncIterator[RequestOutput]]) -> None:
        self._queue: asyncio.Queue[RequestOutput | BaseException | None] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._pump(stream)) for stream in streams]
        super().__init__(self._merge())

    async def _pump(self, stream: AsyncIterator[RequestOutput]) -> None:
        try:
            async for output in stream:
                self._queue.put_nowait(output)
            self._queue.put_nowait(None)
        except Exception as error:
            self._queue.put_nowait(error)
        finally:
            await OutputIterator(stream).aclose()

    async def _merge(self) -> AsyncIterator[RequestOutput]:
        num_open = len(self._tasks)
        while num_open:
            item = await self._queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().aclose()


def _engine_error(output: RequestOutput) -> Exception:
    message = output.error or "the engine could not finish the request"
    if output.error_param is not None:
        return InvalidRequestError(message, param=output.error_param)
    return HttpError(500, message, type="server_error")
