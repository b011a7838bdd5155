"""`takt explain`: how a server holds its targets, and why what was late was late."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from takt.cli.report import report_console
from takt.errors import ConfigError, TaktError

TIMEOUT_SECONDS = 10.0
BAR_WIDTH = 40

UrlOption = Annotated[str, typer.Option("--url", help="Base URL of a running server.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print what GET /slo answers.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key", help="Key of the server; TAKT_API_KEY if not given."),
]
WorstOption = Annotated[
    int, typer.Option("--worst", min=0, max=1024, help="Late tokens to show one by one.")
]


def register(app: typer.Typer) -> None:
    """Adds the command `explain`."""

    @app.command()
    def explain(
        url: UrlOption = "http://127.0.0.1:8000",
        as_json: JsonOption = False,
        api_key: KeyOption = None,
        worst: WorstOption = 10,
    ) -> None:
        """Show how a running server holds its latency targets, and what made tokens late."""
        report = fetch(url, api_key or os.environ.get("TAKT_API_KEY"), worst)
        if as_json:
            sys.stdout.write(json.dumps(report, indent=2) + "\n")
            return
        show(report_console(), report, worst)


def fetch(url: str, api_key: str | None, num_worst: int = 10) -> dict[str, Any]:
    """The server's report; raises `ConfigError` for a URL that is none, `TaktError` otherwise."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url!r} does not begin with http:// or https://")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        address = f"{url.rstrip('/')}/slo?worst={num_worst}"
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            report = json.load(response)
    except urllib.error.HTTPError as error:
        reasons = {
            401: "it wants a key: give --api-key",
            404: "it has no /slo: is it a Takt server, and of this version?",
        }
        why = reasons.get(error.code, f"it answered {error.code}")
        raise TaktError(f"{url}: {why}") from None
    except (OSError, ValueError, RecursionError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        cause = getattr(reason, "strerror", None) or reason
        raise TaktError(f"{url}: no server answers there ({cause})") from None
    if not isinstance(report, dict) or "late_gaps" not in report:
        raise TaktError(f"{url}: /slo is not the report of a Takt server")
    return report


def show(console: Console, report: dict[str, Any], num_worst: int) -> None:
    console.print(_targets(report))
    console.print(_sentence(report), soft_wrap=True)
    for key, title in (("late_gaps", "Late gaps"), ("late_first_tokens", "Late first tokens")):
        if report[key]["num"]:
            console.print(_causes(title, report[key]))
    for key, title in (
        ("worst_gaps", "Worst gaps"),
        ("worst_first_tokens", "Worst times to the first token"),
    ):
        if report[key] and num_worst:
            console.print(_worst(title, report[key][:num_worst]))
    if report["windows"]:
        console.print(_windows(report["windows"]))


def _targets(report: dict[str, Any]) -> Table:
    table = Table(title=f"The last {report['since_seconds']:.0f} s", title_justify="left")
    for name in ("what", "target P99 ms", "P50 ms", "P99 ms", "margin ms", "in time", "held"):
        table.add_column(name, justify="left" if name in ("what", "held") else "right")
    targets = report["targets"]
    for key, name in (("itl", "gap between tokens"), ("ttft", "first token")):
        row = report[key]
        given = "" if targets[f"{key}_is_given"] else " (no SLO)"
        held = "-" if not row["num"] else "yes" if row["is_held"] else "[red]no[/]"
        table.add_row(
            name,
            f"{targets[f'{key}_p99_ms']:g}{given}",
            _number(row["p50_ms"]),
            _number(row["p99_ms"]),
            _number(row["margin_ms"]),
            _percent(row["attainment"]),
            held,
        )
    return table


def _sentence(report: dict[str, Any]) -> str:
    goodput, binding = report["goodput"], report["binding"]
    if binding is None:
        return "No token was written yet."
    good = (
        f"{goodput['num_good']} of {goodput['num_requests']} requests met both targets "
        f"({goodput['requests_per_second']:g} a second)."
    )
    name = {"itl": "the gap between tokens", "ttft": "the first token"}[binding["slo"]]
    share = 1 - binding["margin_share"]
    times = f"{_percent(share)} of" if share < 2 else f"{share:.1f} times"
    bound = f" What binds is {name}: its P99 is {times} its target"
    why = "" if binding["cause"] is None else f"; most of what was late is {binding['cause']}"
    return f"{good}{bound}{why}."


def _causes(title: str, late: dict[str, Any]) -> Table:
    unexplained = _percent(late["unexplained_share"])
    table = Table(
        title=f"{title}: {late['num']}, {late['late_ms']:,.0f} ms beyond their base, "
        f"{unexplained} of it unexplained",
        title_justify="left",
        box=None,
    )
    for name in ("cause", "ms", "share", ""):
        table.add_column(name, justify="left" if name in ("cause", "") else "right")
    causes = sorted(late["causes"].items(), key=lambda item: -(item[1]["share"] or 0))
    for name, cause in causes:
        if cause["ms"] <= 0:
            continue
        share = cause["share"]
        bar = "" if share is None else "█" * round(share * BAR_WIDTH) or "▏"
        table.add_row(name, f"{cause['ms']:,.1f}", _percent(share), bar)
    return table


def _worst(title: str, tokens: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for name in ("ms", "target", "token", "ago s", "request", "where it went, ms"):
        table.add_column(name, justify="left" if name[0] in "rw" else "right")
    for token in tokens:
        causes = sorted(token["causes"].items(), key=lambda item: -item[1])
        split = ", ".join(f"{name} {ms:.1f}" for name, ms in causes if ms >= 0.05)
        table.add_row(
            f"{token['ms']:.1f}",
            f"{token['target_ms']:.1f}",
            str(token["token"]),
            f"{token['age_seconds']:.1f}",
            token["request_id"][-12:],
            split,
        )
    return table


def _windows(windows: list[dict[str, Any]]) -> Table:
    table = Table(title="Last windows of 30 s", title_justify="left", box=None)
    for name in ("ago s", "gaps", "late", "ITL P99 ms", "requests", "good", "TTFT P99 ms", "held"):
        table.add_column(name, justify="right")
    for window in windows[-10:]:
        is_held = window["itl_is_held"] and window["ttft_is_held"]
        table.add_row(
            f"{window['age_seconds']:.0f}",
            str(window["num_gaps"]),
            str(window["num_late_gaps"]),
            _number(window["itl_p99_ms"]),
            str(window["num_requests"]),
            str(window["num_good_requests"]),
            _number(window["ttft_p99_ms"]),
            "yes" if is_held else "[red]no[/]",
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
