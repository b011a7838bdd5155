"""Requests as OpenAI and vLLM define them. Only fields that are honoured have a place here."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from takt.config import MAX_TARGET_MS
from takt.engine.sizing import MAX_BIASES_PER_ROW
from takt.errors import InvalidRequestError
from takt.scheduler.slo import SLO, is_target_ms
from takt.types.sampling_params import MAX_SEED, SamplingParams

MAX_CHOICES = 128
"""Most choices of one prompt, as at OpenAI."""

DEFAULT_COMPLETION_TOKENS = 16

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 4096
"""Of all stop strings together. Each is looked for in every token's text, on the event loop."""

MAX_STOP_TOKEN_IDS = 1024
MAX_SALT_CHARS = 1024

Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""An integer that survives arithmetic and MessagePack; JSON's may have any number of digits."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted: padding against traffic analysis, which changes no answer."""


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request asks for itself, in milliseconds: P99 of its gaps, and its first token."""

    itl_ms: float | None = None
    ttft_ms: float | None = None

    def as_slo(self) -> SLO:
        for name, value in (("itl_ms", self.itl_ms), ("ttft_ms", self.ttft_ms)):
            if value is not None and not is_target_ms(value):
                raise InvalidRequestError(
                    f"slo.{name} must be a number of milliseconds above 0 and below "
                    f"{MAX_TARGET_MS:g}, got {value:g}",
                    param=f"slo.{name}",
                )
        return SLO.from_ms(self.itl_ms, self.ttft_ms)


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chat have in common; defaults are OpenAI's."""

    model: str | None = None
    max_tokens: Int | None = None
    n: Int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: int | None = None
    stop: str | list[str] = []
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    # vLLM's.
    top_k: Int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: Int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Int | None = None
    priority: Int = 0
    cache_salt: str = ""
    # Ours.
    slo: Targets | None = None

    prompt_field: ClassVar[str] = "prompt"
    """What the request calls its prompt."""

    @property
    def limit_field(self) -> str:
        """What the request calls its output limit."""
        return "max_tokens"

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def check_stream(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError(
                "stream_options is only allowed when stream is true", param="stream_options"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs is not available when stream is true", param="prompt_logprobs"
            )


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: Any = None
    echo: bool = False
    logprobs: Int | bool | None = None
    best_of: Int | None = None
    add_special_tokens: bool = True

    @property
    def num_logprobs(self) -> int | None:
        return None if self.logprobs is False else self.logprobs

    def check(self) -> None:
        self.check_stream()
        if self.logprobs is True:
            raise InvalidRequestError("logprobs: expected `int`, got `bool`", param="logprobs")
        if self.best_of is not None and self.best_of != self.n:
            raise InvalidRequestError(
                f"best_of is not supported: it may only equal n, {self.n}, got {self.best_of}",
                param="best_of",
                code="unsupported_parameter",
            )
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequestError(
                "max_tokens must be at least 1; 0 is for scoring a prompt, with echo",
                param="max_tokens",
            )


class ChatCompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    messages: list[Any]
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Int = 0
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}

    prompt_field: ClassVar[str] = "messages"

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def token_limit(self) -> int | None:
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def check(self) -> None:
        self.check_stream()
        if self.token_limit is not None and self.token_limit < 1:
            raise InvalidRequestError(
                f"{self.limit_field} must be at least 1", param=self.limit_field
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError(
                "top_logprobs is only allowed when logprobs is true", param="top_logprobs"
            )


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


def sampling_params(
    request: GenerationRequest,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: Int | None,
    max_logprobs: int,
    vocab_size: int,
) -> SamplingParams:
    """A request's sampling, checked; without a seed of the client's, one is drawn."""
    _check_at_most("n", request.n, MAX_CHOICES)
    for name, value in (("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)):
        if value is not None:
            _check_at_most(name, value, max_logprobs, " (--max-logprobs)")
    _check_sizes(request)
    _check_token_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    return SamplingParams(
        n=request.n,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=_logit_bias(request.logit_bias, vocab_size),
        seed=_seed(request.seed),
        stop=request.stop_strings,
        stop_token_ids=tuple(request.stop_token_ids),
        include_stop_str_in_output=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=request.skip_special_tokens,
    )


def fit_max_tokens(
    wanted: int | None,
    default: int,
    num_prompt_tokens: int,
    max_model_len: int,
    *,
    prompt_field: str,
    limit_field: str,
) -> int:
    """The output limit of a request; raises if prompt and output cannot fit the context.

    `prompt_field` and `limit_field` are what the client called prompt and limit.
    """
    room = max_model_len - num_prompt_tokens
    if room < 0 or (room == 0 and wanted != 0):
        raise prompt_too_long(f"{num_prompt_tokens}", max_model_len, prompt_field)
    if wanted is None:
        return min(default, room)
    if wanted > room:
        raise InvalidRequestError(
            f"{limit_field} is {wanted}, and the prompt's {num_prompt_tokens} tokens leave room "
            f"for {room} in a context of {max_model_len}: lower {limit_field} or shorten the "
            "prompt",
            param=limit_field,
            code="context_length_exceeded",
        )
    return wanted


def prompt_too_long(num_tokens: str, max_model_len: int, field: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the prompt has {num_tokens} tokens, and the context of this model holds "
        f"{max_model_len} tokens of prompt and output together: shorten the prompt",
        param=field,
        code="context_length_exceeded",
    )


def _seed(seed: int | None) -> int:
    """Negative seeds are the 64-bit pattern they stand for."""
    if seed is None:
        return secrets.randbits(64)
    if not -(2**63) <= seed <= MAX_SEED:
        raise InvalidRequestError(f"seed must fit 64 bits, got {seed}", param="seed")
    return seed & MAX_SEED


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < vocab_size):
            raise InvalidRequestError(
                f"logit_bias: {key[:32]!r} is not a token id below {vocab_size}", param="logit_bias"
            )
        result[int(key)] = bias
    return result


def _check_sizes(request: GenerationRequest) -> None:
    """Limits on what the event loop or the engine would have to go through for every request."""
    for name, size, limit, what in (
        ("stop", len(request.stop_strings), MAX_STOP_STRINGS, "strings"),
        ("stop", sum(map(len, request.stop_strings)), MAX_STOP_CHARS, "characters in all"),
        ("stop_token_ids", len(request.stop_token_ids), MAX_STOP_TOKEN_IDS, "ids"),
        ("logit_bias", len(request.logit_bias), MAX_BIASES_PER_ROW, "entries"),
        ("cache_salt", len(request.cache_salt), MAX_SALT_CHARS, "characters"),
    ):
        if size > limit:
            raise InvalidRequestError(f"{name} has {size} {what}, more than {limit}", param=name)


def _check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{name}: token id {token_id} is not between 0 and {vocab_size - 1}", param=name
            )


def _check_at_most(name: str, value: int, limit: int, flag: str = "") -> None:
    if value > limit:
        raise InvalidRequestError(f"{name} must be at most {limit}{flag}, got {value}", param=name)
