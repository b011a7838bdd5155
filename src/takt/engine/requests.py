"""From a client's `AddRequest` to the scheduler's `Request`: defaults resolved, values checked."""

from __future__ import annotations

import secrets
from collections.abc import Set
from dataclasses import dataclass

import msgspec

from takt.engine.messages import AddRequest
from takt.engine.sizing import MAX_BIASES_PER_ROW
from takt.errors import InvalidRequestError
from takt.scheduler.request import Request
from takt.scheduler.slo import SLO
from takt.types.sampling_params import SamplingParams


def with_seed(sampling: SamplingParams) -> SamplingParams:
    """The same with a seed, drawn if none is given, so that whoever records it can repeat it."""
    if sampling.seed is not None:
        return sampling
    return msgspec.structs.replace(sampling, seed=secrets.randbits(64))


@dataclass(frozen=True, slots=True)
class RequestRules:
    """What a running engine accepts; lengths that depend on the pool are the scheduler's."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    default_max_tokens: int
    eos_token_ids: Set[int]

    def check(self, request: AddRequest) -> None:
        """Raises `InvalidRequestError` for what no kernel may see or no buffer could hold.

        Lengths are the scheduler's to check.
        """
        prompt, sampling = request.prompt_token_ids, request.sampling
        if not prompt:
            raise InvalidRequestError("prompt: it has no tokens", param="prompt")
        for token_id in (min(prompt), max(prompt)):
            self._check_token_id("prompt", token_id)
        for token_id in sampling.logit_bias:
            self._check_token_id("logit_bias", token_id)
        for token_id in sampling.stop_token_ids:
            self._check_token_id("stop_token_ids", token_id)
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(sampling, name)
            if asked is not None and asked > self.max_logprobs:
                raise InvalidRequestError(
                    f"{name} is {asked}, more than this server reports, {self.max_logprobs} "
                    "(--max-logprobs)",
                    param=name,
                )
        num_biases = len(sampling.logit_bias)
        if sampling.min_tokens:
            num_biases += len(self.stop_token_ids(sampling))
        if num_biases > MAX_BIASES_PER_ROW:
            raise InvalidRequestError(
                f"logit_bias and the ids that min_tokens forbids are {num_biases} entries, "
                f"more than {MAX_BIASES_PER_ROW}",
                param="logit_bias",
            )

    def stop_token_ids(self, sampling: SamplingParams) -> frozenset[int]:
        own = frozenset(sampling.stop_token_ids)
        return own if sampling.ignore_eos else own | self.eos_token_ids

    def resolve(self, request: AddRequest, arrival_ns: int) -> Request:
        """The scheduler's view of a request; raises as `check` does."""
        self.check(request)
        sampling = with_seed(request.sampling)
        max_tokens = sampling.max_tokens
        if max_tokens is None:
            room = self.max_model_len - len(request.prompt_token_ids)
            # At least one, so that a prompt that leaves no room is refused and not just scored.
            max_tokens = max(min(self.default_max_tokens, room), 1)
            if sampling.min_tokens > max_tokens:
                raise InvalidRequestError(
                    f"min_tokens is {sampling.min_tokens}, more than the output limit that holds "
                    f"without max_tokens, {max_tokens}",
                    param="min_tokens",
                )
        return Request(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_token_ids=self.stop_token_ids(sampling),
            arrival_ns=arrival_ns,
            priority=request.priority,
            slo=SLO(request.slo_itl_ns, request.slo_ttft_ns),
            cache_salt=request.cache_salt,
            num_generated_before=request.num_generated_before,
        )

    def _check_token_id(self, field: str, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"{field} has token id {token_id}, outside the vocabulary of {self.vocab_size}",
                param=field,
            )
