"""How sequences begin as another's sibling, and when a new token ends one."""

from __future__ import annotations

from takt.scheduler.request import Request, RequestStatus


def stop_reason(request: Request, token_id: int) -> str | None:
    """finish_reason that `token_id`, the newest of `request.token_ids`, brings, or None.

    A stop token counts once `min_tokens` tokens stand before it.
    """
    num_output = len(request.token_ids) - len(request.prompt_token_ids)
    if token_id in request.stop_token_ids and num_output > request.sampling.min_tokens:
        return "stop"
    return "length" if num_output >= request.max_tokens else None


def new_sibling(parent: Request, choice: int, status: RequestStatus) -> Request:
    """Another choice of the parent's request, as far as the parent is, and not begun to sample."""
    is_running = status is RequestStatus.RUNNING
    sibling = Request(
        request_id=parent.request_id,
        prompt_token_ids=parent.prompt_token_ids,
        sampling=parent.sampling,
        max_tokens=parent.max_tokens,
        stop_token_ids=parent.stop_token_ids,
        arrival_ns=parent.arrival_ns,
        priority=parent.priority,
        slo=parent.slo,
        choice=choice,
        cache_salt=parent.cache_salt,
        status=status,
        num_cached_tokens=parent.num_cached_tokens,
        first_scheduled_ns=parent.first_scheduled_ns,
        num_scored_tokens=parent.num_prompt_tokens,  # the first choice reports the prompt's
        order_key=(*parent.order_key[:-1], choice),
        max_computed_tokens=parent.max_computed_tokens,
        prefix=parent.prefix.fork() if parent.prefix else None,
    )
    if is_running:
        sibling.num_computed_tokens = parent.num_computed_tokens
        sibling.num_in_flight_tokens = 1
        sibling.last_step_id = parent.last_step_id
    return sibling
