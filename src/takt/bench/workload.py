"""Which requests are sent and when: closed loop, Poisson, or a trace."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

from takt.bench.options import BenchOptions
from takt.errors import ConfigError

DEFAULT_NUM_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    index: int
    arrival_s: float | None
    """Since the start; None in a closed loop."""
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_id: int | None = None
    num_prefix_tokens: int = 0
    is_long: bool = False


class TraceLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a trace."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_id: int | None = None
    num_prefix_tokens: int = 0


def plan_requests(options: BenchOptions) -> list[PlannedRequest]:
    """The requests of a run in the order of their arrival; equal for equal options.

    Raises `ConfigError` for a trace that cannot be read.
    """
    if options.trace is not None:
        return _from_trace(Path(options.trace), options.num_requests)
    num_requests = options.num_requests or DEFAULT_NUM_REQUESTS
    # Strings, not tuples: their seeds do not depend on the process.
    rng = random.Random(f"arrivals-{options.seed}")
    clock_s = 0.0
    result = []
    for index in range(num_requests):
        if options.qps is not None:
            clock_s += rng.expovariate(options.qps)
        arrival_s = clock_s if options.qps is not None else None
        every = options.long_prompt_every
        is_long = every > 0 and index % every == every - 1
        has_prefix = options.num_prefixes > 0 and not is_long
        result.append(
            PlannedRequest(
                index,
                arrival_s,
                options.long_prompt_tokens if is_long else options.prompt_tokens,
                options.output_tokens,
                rng.randrange(options.num_prefixes) if has_prefix else None,
                options.prefix_tokens if has_prefix else 0,
                is_long,
            )
        )
    return result


def _from_trace(path: Path, num_requests: int | None) -> list[PlannedRequest]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--trace {path}: {error.strerror}") from None
    result: list[PlannedRequest] = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = _read_line(text, f"{path}:{number}")
        if result and line.arrival_s < (result[-1].arrival_s or 0.0):
            raise ConfigError(f"{path}:{number}: arrival_s is before that of the line above")
        result.append(
            PlannedRequest(
                len(result),
                line.arrival_s,
                line.num_prompt_tokens,
                line.num_output_tokens,
                line.prefix_id if line.num_prefix_tokens else None,
                line.num_prefix_tokens,
            )
        )
        if len(result) == num_requests:
            break
    if not result:
        raise ConfigError(f"--trace {path} has no requests")
    return result


def _read_line(text: bytes, where: str) -> TraceLine:
    try:
        line = msgspec.json.decode(text, type=TraceLine)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: {error}") from None
    if line.arrival_s < 0 or line.num_prompt_tokens < 1 or line.num_output_tokens < 1:
        raise ConfigError(f"{where}: arrival_s must be at least 0, and token counts at least 1")
    if not 0 <= line.num_prefix_tokens < line.num_prompt_tokens:
        raise ConfigError(f"{where}: num_prefix_tokens must be less than num_prompt_tokens")
    return line
