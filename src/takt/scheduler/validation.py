"""Requests that could wait forever are refused when they come."""

from __future__ import annotations

from takt.errors import InvalidRequestError
from takt.scheduler.limits import SchedulerLimits
from takt.scheduler.request import Request
from takt.scheduler.reservation import KVReservation

_TOO_LONG = "context_length_exceeded"


def check_request(request: Request, limits: SchedulerLimits, reservation: KVReservation) -> None:
    """Raises `InvalidRequestError` if no state of the engine could ever serve the request."""
    _check_length(request, limits)
    num_choices = request.sampling.n
    if num_choices > limits.max_num_seqs:
        raise InvalidRequestError(
            f"n is {num_choices}, but at most {limits.max_num_seqs} sequences run at a time "
            "(--max-num-seqs); ask for fewer choices",
            param="n",
        )
    if not limits.enable_chunked_prefill:
        _check_whole_prompt(request, limits)
    shortage = reservation.shortage(request)
    if shortage is not None:
        needed, existing = shortage
        raise InvalidRequestError(
            f"the request may need {needed} KV blocks ({request.num_prompt_tokens} prompt tokens, "
            f"max_tokens {request.max_tokens}, n {num_choices}), but the pool has {existing}; "
            "lower max_tokens or n, or start the engine with a larger --kv-cache-memory-bytes",
            param="max_tokens",
        )


def _check_length(request: Request, limits: SchedulerLimits) -> None:
    num_prompt, limit = request.num_prompt_tokens, limits.max_model_len
    if num_prompt == 0:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    if num_prompt >= limit and not (num_prompt == limit and request.max_tokens == 0):
        raise InvalidRequestError(
            f"the prompt has {num_prompt} tokens, but prompt and output together can have at most "
            f"{limit} (max_model_len); shorten the prompt",
            param="prompt",
            code=_TOO_LONG,
        )
    if num_prompt + request.max_tokens > limit:
        raise InvalidRequestError(
            f"the prompt has {num_prompt} tokens and max_tokens is {request.max_tokens}, together "
            f"more than {limit} (max_model_len); lower max_tokens to {limit - num_prompt} or less",
            param="max_tokens",
            code=_TOO_LONG,
        )


def _check_whole_prompt(request: Request, limits: SchedulerLimits) -> None:
    num_prompt = request.num_prompt_tokens
    if num_prompt > limits.max_num_batched_tokens:
        raise InvalidRequestError(
            f"the prompt has {num_prompt} tokens, but without chunked prefill a step computes at "
            f"most {limits.max_num_batched_tokens} (--max-num-batched-tokens); shorten the prompt "
            "or enable chunked prefill",
            param="prompt",
            code=_TOO_LONG,
        )
    num_rows = num_prompt - 1 + request.sampling.n
    if request.sampling.prompt_logprobs is not None and num_rows > limits.max_num_rows:
        raise InvalidRequestError(
            f"prompt_logprobs of {num_prompt} tokens and {request.sampling.n} choices need "
            f"{num_rows} rows of logits, but without chunked prefill a step has at most "
            f"{limits.max_num_rows}; shorten the prompt or enable chunked prefill",
            param="prompt_logprobs",
        )
