"""A model's chat template: Jinja in a sandbox, with limits on time and size."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from takt.errors import ConfigError, InvalidRequestError
from takt.server.template_limits import (
    TemplateLimitError,
    check_method,
    check_printf,
    check_size,
    check_written,
    limited_filters,
)

MAX_RENDER_SECONDS = 2.0
MAX_RENDERED_CHARS = 32 * 1024 * 1024


class ChatTemplate:
    """A compiled template. `render` may be called from any thread, several at a time."""

    def __init__(self, source: str, origin: str) -> None:
        """`origin` is the file it came from; raises `ConfigError` with file and line."""
        self.origin = origin
        self._environment = _Sandbox()
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template of {origin} has a syntax error in line {error.lineno}: "
                f"{error.message}"
            ) from None
        except RecursionError:
            raise ConfigError(f"the chat template of {origin} is nested too deeply") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text. A template that refuses or fails is the request's error: 400."""
        deadline = _Deadline(MAX_RENDER_SECONDS)
        parts: list[str] = []
        num_chars = 0
        try:
            for part in self._template.generate({**variables, _TICK: deadline.check}):
                deadline.check()
                num_chars += len(part)
                if num_chars > MAX_RENDERED_CHARS:
                    raise TemplateLimitError(
                        f"its text grows beyond {MAX_RENDERED_CHARS} characters"
                    )
                parts.append(part)
        except _Refusal as refusal:
            raise _invalid(str(refusal)) from None
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise _invalid(
                f"the model's chat template failed on these messages: {reason}"
            ) from None
        return "".join(parts)


def load_chat_template(option: str | None, own: str | None, origin: str) -> ChatTemplate | None:
    """The template that `--chat-template` names (a file, or the text itself), else the model's own.

    None if there is neither. Raises `ConfigError` for a file that cannot be read.
    """
    if option is None:
        return ChatTemplate(own, origin) if own else None
    if "{" in option or "\n" in option:
        return ChatTemplate(option, "--chat-template")
    try:
        return ChatTemplate(Path(option).read_text(encoding="utf-8"), option)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--chat-template {option}: {reason}") from None


class _Refusal(jinja2.TemplateError):
    """`raise_exception` of the template itself."""


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise TemplateLimitError(f"it takes longer than {self._seconds:g} seconds")


_TICK = "takt_deadline_check"


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it; loops watch the time, operators the size."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=check_written,
        )
        self.filters["tojson"] = _to_json
        self.filters = limited_filters(self.filters)
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop begins each round with a look at the clock, every macro each call."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, _tick(loop.lineno))
        for macro in tree.find_all(nodes.Macro):
            macro.body.insert(0, _tick(macro.lineno))
        _ConcatAsAdd().visit(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            check_size(_size(left) + _size(right))
        elif operator == "*":
            check_size(_size(left) * _number(right), _size(right) * _number(left))
        elif operator == "**":
            check_size(_number(left).bit_length() * _number(right) * 1024)
        elif isinstance(left, (str, bytes)):
            check_printf(str(left))
            check_written(right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if args and getattr(function, "__name__", "") == "join" and not hasattr(args[0], "__len__"):
            args = (list(args[0]), *args[1:])  # what a filter yields has no length yet
        check_method(function, args, kwargs)
        return super().call(context, function, *args, **kwargs)


def _tick(lineno: int) -> nodes.Node:
    call = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
    return nodes.ExprStmt(call).set_lineno(lineno)


class _ConcatAsAdd(NodeTransformer):
    """Turns `a ~ b` into `a|string + b|string`: the sandbox can watch `+` alone."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = [nodes.Filter(part, "string", [], [], None, None) for part in node.nodes]
        result: nodes.Expr = parts[0]
        for part in parts[1:]:
            result = nodes.Add(result, part)
        return result.set_lineno(node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training; here it only stands around it."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _number(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own, which escapes for HTML: a model must see the characters themselves."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")
