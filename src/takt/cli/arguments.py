"""Looks at the arguments before they are parsed: vLLM's flags that are mapped or refused here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from takt.cli.vllm_flags import VLLM_FLAGS, Mapped, Refused
from takt.errors import ConfigError


def translate(arguments: Sequence[str], known: frozenset[str]) -> list[str]:
    """Arguments with vLLM's mapped flags under our names; `known` are the command's own flags.

    Underscores in a long flag's name are dashes, as in vLLM. Raises `ConfigError` for a flag that
    vLLM has and we refuse, with the reason, and for one that nobody has, with the nearest name.
    """
    result: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--":
            return [*result, argument, *arguments[position:]]
        if not argument.startswith("-") or argument == "-" or _is_number(argument):
            result.append(argument)
            continue
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if flag in known:
            result.append(flag + equals + value)
            continue
        disposition = VLLM_FLAGS.get(flag)
        if isinstance(disposition, Mapped):
            result.append(disposition.flag + equals + value)
        elif isinstance(disposition, Refused):
            if "" in disposition.neutral and not equals:
                continue
            if not equals and position < len(arguments):
                value = arguments[position]
            if value not in disposition.neutral or not value:
                raise ConfigError(
                    f"{flag} is a flag of vLLM's that is refused: {disposition.reason}"
                )
            position += 0 if equals else 1
        else:
            raise ConfigError(_unknown(flag, known))
    return result


def _unknown(flag: str, known: frozenset[str]) -> str:
    nearest = difflib.get_close_matches(flag, sorted(known), n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else "; --help lists them all"
    return f"there is no option {flag}{hint}"


def _is_number(argument: str) -> bool:
    try:
        float(argument)
    except ValueError:
        return False
    return True
