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
    ],
)
def test_template_that_goes_too_far_is_stopped(
    monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    seconds = 0.2 if message == "longer" else 60
    monkeypatch.setattr(chat_template, "MAX_RENDER_SECONDS", seconds)
    with pytest.raises(InvalidRequestError, match=message):
        render(source, messages=[])


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
