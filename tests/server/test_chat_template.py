"""The sandbox around a model's template."""

from __future__ import annotations

from pathlib import Path

import pytest

from takt.errors import ConfigError, InvalidRequestError
from takt.server import chat_template
from takt.server.chat_template import ChatTemplate, load_chat_template


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, "test").render(variables)


def test_filters_and_globals_that_templates_expect() -> None:
    assert render("{{ x | tojson }}", x={"a": "<é>"}) == '{"a": "<é>"}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% generation %}a{% endgeneration %}b") == "ab"
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "1"
    )
    assert render("{% for i in [1] %}\n  {% if i %}\nx\n  {% endif %}\n{% endfor %}") == "x\n"
    assert render("{{ 'a' ~ 1 ~ ('b' ~ none) }}") == "a1bNone"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "longer",
        ),
        ("{{ 'a' * 999999999 }}", "grows"),
        ("{{ [1] * 999999999 }}", "grows"),
        ("{{ 7 ** 7 ** 7 ** 7 ** 7 ** 7 ** 7 }}", "grows"),
        ("{{ '%999999999d' % 1 }}", "wide"),
        ("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "grows"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}",
            "grows",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ nothing.at_all }}", "undefined"),
        ("{{ ['a'] | join('x' * 9999999) ~ ((['a'] * 9) | join('x' * 9999999)) }}", "grows"),
        ("{{ ('x' * 9999999).join(['a'] * 9) }}", "grows"),
        ("{{ ('x' * 9999999).join((['a'] * 9) | map('upper')) }}", "grows"),
        ("{{ ('x' * 99999) | replace('x', 'y' * 99999) }}", "grows"),
        ("{{ ('x' * 99999).replace('', 'y' * 99999) }}", "grows"),
        ("{{ ('x' * 99999).replace('x', 'y' * 99999) }}", "grows"),
        ("{{ 'x'.center(10 ** 9) }}", "beyond"),
        ("{{ 'x'.zfill(width=10 ** 9) }}", "beyond"),
        ("{{ '\\t'.expandtabs(10 ** 9) }}", "beyond"),
        ("{{ 'a' | indent(10 ** 9, true) }}", "beyond"),
        ("{{ [1] | tojson(indent=10 ** 9) }}", "beyond"),
        ("{{ 1.5 | round(10 ** 9) }}", "beyond"),
        ("{{ [1] | batch(10 ** 9, 'x') | list }}", "beyond"),
        ("{{ [1] | slice(10 ** 9) | list }}", "beyond"),
        ("{{ ['a', 'b'] | map('indent', 10 ** 9, true) | list }}", "beyond"),
        ("{{ '%999999999d' | format(1) }}", "wide"),
        ("{{ '{:999999999}'.format(1) }}", "wide"),
        ("{{ '{:{}}'.format(1, 10 ** 9) }}", "wide"),
        ("{{ [[1]] | sum(start=[]) }}", "sum"),
        ("{{ 'ab'.translate({97: 'x' * 99999}) }}", "translate"),
        ("{{ lipsum(10 ** 9) }}", "lipsum"),
    ],
)
def test_template_that_goes_too_far_is_stopped(
    monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    seconds = 0.2 if message == "longer" else 60
    monkeypatch.setattr(chat_template, "MAX_RENDER_SECONDS", seconds)
    with pytest.raises(InvalidRequestError, match=message):
        render(source, messages=[])


DOUBLED = (
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
)


@pytest.mark.parametrize(
    "use",
    [
        "{{ n.x }}",
        "{{ n.x | string }}",
        "{{ n.x ~ '' }}",
        "{{ n.x | tojson }}",
        "{{ n.x | join }}",
        "{{ '%s' % n.x }}",
        "{{ '%s' % [n.x] }}",
        "{{ '{}'.format(n.x) }}",
        "{{ '{x}'.format(x=n.x) }}",
        "{{ ''.join(n.x) }}",
        "{{ 'a' | replace('a', n.x) }}",
    ],
)
def test_value_that_holds_itself_over_and_over_is_never_written(use: str) -> None:
    with pytest.raises(InvalidRequestError, match="grows"):
        render(DOUBLED + use)


def test_what_templates_do_with_texts_still_works() -> None:
    assert render("{{ 'a-b'.replace('-', '+') ~ ('a-b' | replace('-', '')) }}") == "a+bab"
    assert render("{{ ', '.join(['a', 'b']) ~ (['c', 'd'] | join('; ')) }}") == "a, bc; d"
    assert render("{{ ''.join(['a', 'b'] | map('upper')) }}") == "AB"
    assert render("{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}") == "3"
    assert render("{{ 'a\\nb' | indent(2) }}") == "a\n  b"
    assert render("{{ '%s=%d' | format('x', 3) ~ '{}'.format(4) }}") == "x=34"
    assert render("{{ [1, 2, 3] | batch(2) | list }}") == "[[1, 2], [3]]"
    assert render("{{ x }}{{ 1.25 | round(1) }}{{ none }}", x=["é"]) == "['é']1.2None"


def test_filter_that_is_left_out_fails_at_once() -> None:
    with pytest.raises(ConfigError, match="urlize"):
        ChatTemplate("{{ 'a' | urlize }}", "test")


def test_syntax_error_fails_at_once_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("fine\n{% if %}\n")
    with pytest.raises(ConfigError, match=r"template\.jinja.*line 2"):
        load_chat_template(str(file), None, "model.gguf")
    with pytest.raises(ConfigError, match=r"model\.gguf.*line 1"):
        load_chat_template(None, "{{", "model.gguf")


def test_option_is_a_file_or_the_text(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("from a file")
    given = load_chat_template(str(file), "own", "model")
    assert given is not None and given.render({}) == "from a file"
    given = load_chat_template("{{ 'text' }}", "own", "model")
    assert given is not None and given.render({}) == "text"
    given = load_chat_template(None, "own", "model")
    assert given is not None and given.render({}) == "own"
    assert load_chat_template(None, None, "model") is None
    with pytest.raises(ConfigError, match="no-such-file"):
        load_chat_template(str(tmp_path / "no-such-file"), None, "model")
