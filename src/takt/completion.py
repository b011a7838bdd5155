"""What the offline API returns; field names are those of vLLM's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from takt.engine.messages import TokenLogprob


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `logprobs` has an entry per token where the request asked for them."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    """`stop`, or `length` when max_tokens were generated."""
    stop_reason: str | int | None = None
    """The stop string or stop token that ended it; None for the model's own end of text."""

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum over the tokens, in nats; None without logprobs."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(slots=True)
class Completion:
    """The answer to one prompt, `n` choices in `outputs`."""

    request_id: str
    prompt: str | None
    """None for a prompt of token ids, or a chat."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    seed: int | None
    """Gives the same text again, also when it was drawn; None for greedy decoding."""
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """One entry per prompt token where asked for; the first is None."""
    num_cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)
