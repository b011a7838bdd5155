"""What one call inside a template may cost. Loops watch the time; a single call cannot be stopped.

So each call that could make much from little is looked at before it runs: its numbers, and the
sizes of what it would write.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jinja2

MAX_VALUE_ITEMS = 32 * 1024 * 1024
"""Length of a string or list that an operator, filter or method may make."""

MAX_NODES = 2**20
"""Values that may be written out at once; a value that is met twice counts twice."""

MAX_NUMBER = 10_000
"""Of a width, a count or a precision."""

REMOVED_FILTERS = (
    "center", "filesizeformat", "forceescape", "pprint", "random", "striptags", "urlize",
    "wordwrap", "xmlattr",
)  # fmt: skip
"""Made for HTML: no chat template needs them, and some take quadratic time."""

_WITH_NUMBERS = frozenset({"batch", "indent", "round", "slice", "tojson", "truncate"})
_WRITING = frozenset({"format", "join", "string", "tojson"})
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_NESTED_OR_WIDE = re.compile(r"\{[^{}]*\{|\d{5}")


class TemplateLimitError(jinja2.TemplateError):
    """A template asks for more than any prompt needs."""


def check_size(*sizes: int) -> None:
    if max(sizes) > MAX_VALUE_ITEMS:
        raise TemplateLimitError(f"a value in it grows beyond {MAX_VALUE_ITEMS} items")


def check_written(value: Any) -> Any:
    """Checks what writing out `value` would take, and returns it."""
    if isinstance(value, str) or not isinstance(value, (list, tuple, dict)):
        return value
    num_nodes, num_chars = 0, 0
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, (list, tuple, dict)):
            num_nodes += len(item)
            if num_nodes > MAX_NODES:
                raise TemplateLimitError(f"a value in it grows beyond {MAX_NODES} items")
            rest.extend(item)
            if isinstance(item, dict):
                rest.extend(item.values())
        elif isinstance(item, (str, bytes)):
            num_chars += len(item)
            check_size(num_chars)
    return value


def check_printf(format: str) -> None:
    widths = re.findall(r"\d+|\*", format)
    if any(width == "*" or len(width) > 4 for width in widths):
        raise TemplateLimitError("a format in it is too wide")


def limited_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The same filters, each of which looks at its arguments first where that matters."""
    kept = {name: f for name, f in filters.items() if name not in REMOVED_FILTERS}
    return {name: _limited(name, function) for name, function in kept.items()}


def check_method(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Looks at a call of one of a string's own methods, before it is made."""
    function = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
    text = getattr(function, "__self__", None)
    if not isinstance(text, str):
        return
    name = function.__name__
    if name in _PADDING:
        _check_numbers(args, kwargs)
    elif name == "replace":
        _check_replace(text, *args, **kwargs)
    elif name == "join":
        _check_join(text, *args)
    elif name in ("format", "format_map"):
        if _NESTED_OR_WIDE.search(text):
            raise TemplateLimitError("a format in it is too wide")
        check_written([*args, *kwargs.values()])
    elif name == "translate":
        raise TemplateLimitError("it calls translate, which is not supported")


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    is_first_ours = hasattr(function, "jinja_pass_arg")  # an environment or a context

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        value, *rest = args[is_first_ours:]
        if name in _WITH_NUMBERS:
            _check_numbers(rest, kwargs)
        if name in _WRITING:
            check_written([value, *rest, *kwargs.values()])
        if name == "replace":
            _check_replace(str(check_written(value)), *rest, **kwargs)
        elif name == "join":
            separator = rest[0] if rest else kwargs.get("d", "")
            _check_join(str(separator), value)
        elif name == "format":
            check_printf(str(value))
        elif name == "sum" and not isinstance(kwargs.get("start", [*rest, 0, 0][1]), (int, float)):
            raise TemplateLimitError("sum in it starts from no number")
        return function(*args, **kwargs)

    return call


def _check_numbers(args: Any, kwargs: Mapping[str, Any]) -> None:
    for number in (*args, *kwargs.values()):
        if isinstance(number, int) and abs(number) > MAX_NUMBER:
            raise TemplateLimitError(f"a number in it is beyond {MAX_NUMBER}")


def _check_replace(text: str, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    old_text, new_text = str(check_written(old)), str(check_written(new))
    num_found = text.count(old_text) if old_text else len(text) + 1
    check_size(len(text) + num_found * len(new_text))


def _check_join(separator: str, items: Any = (), *_: Any) -> None:
    if isinstance(items, (list, tuple, dict)):
        check_size(len(items) * len(separator))
        check_written(items)
