"""Writes docs/reference from the code: options with their defaults, vLLM's flags, metrics."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from takt.bench.options import BenchOptions
from takt.cli.options import PANELS, SERVER_TABLES, flag_of, is_switch
from takt.cli.vllm_flags import OTHER_DEFAULTS, VLLM_FLAGS, Mapped, Refused
from takt.clock import ManualClock
from takt.gateway.metrics import GatewayMetrics
from takt.gateway.options import GatewayOptions
from takt.observe.ledger.ledger import Ledger
from takt.observe.metrics import Metrics
from takt.verify.options import VerifyOptions

GENERATED = "Written by `make reference`; do not edit by hand.\n"


def flags_page() -> str:
    """Every option: flag, default, choices, meaning."""
    lines = ["# Flags and defaults", "", GENERATED]
    for table in (*SERVER_TABLES, BenchOptions, VerifyOptions, GatewayOptions):
        lines += [f"## {PANELS[table]}", "", "| flag | default | meaning |", "|---|---|---|"]
        for field in dataclasses.fields(table):
            choices = field.metadata.get("choices")
            meaning = field.metadata["help"]
            if choices:
                meaning += f" One of: {', '.join(str(c) for c in choices)}."
            flag = f"`{flag_of(field.name)}`"
            if is_switch(field):
                flag += f", `{flag_of('no_' + field.name)}`"
            lines.append(f"| {flag} | {_default(field)} | {_cell(meaning)} |")
        lines.append("")
    return "\n".join(lines)


def vllm_page() -> str:
    """Every flag of `vllm serve`: same, mapped or refused."""
    ours = {flag_of(field.name) for table in SERVER_TABLES for field in dataclasses.fields(table)}
    rows: dict[str, str] = {flag: "same" for flag in ours - OWN_FLAGS}
    rows |= {flag: f"same; {difference}" for flag, difference in OTHER_DEFAULTS.items()}
    for flag, disposition in VLLM_FLAGS.items():
        if isinstance(disposition, Mapped):
            rows[flag] = f"mapped to `{disposition.flag}`"
        elif isinstance(disposition, Refused) and "" in disposition.neutral:
            rows[flag] = "accepted: it is so anyway"
        else:
            rows[flag] = f"refused: {disposition.reason}"
            if disposition.neutral:
                rows[flag] += f" (accepted with {' or '.join(disposition.neutral)})"
    lines = ["# Flags of `vllm serve` 0.32", "", GENERATED, "| flag | here |", "|---|---|"]
    lines += [f"| `{flag}` | {_cell(rows[flag])} |" for flag in sorted(rows)]
    own = sorted(OWN_FLAGS)
    lines += ["", "Flags of our own: " + ", ".join(f"`{flag}`" for flag in own) + ".", ""]
    return "\n".join(lines)


def metrics_page() -> str:
    """Every metric that a fresh server exposes."""
    registry = CollectorRegistry()
    Metrics(registry, "model").watch_ledger(Ledger(ManualClock()))
    return _metrics("Metrics", registry, "")


def gateway_metrics_page() -> str:
    """Every metric of a gateway; labels of those that have no series yet are the declared ones."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.watch_upstreams([])
    metrics.watch_service("service")
    return _metrics("Metrics of the gateway", registry, GATEWAY_NOTE)


GATEWAY_NOTE = (
    "`takt gateway` serves them at `GET /metrics`. `service` is the policy's name for a route, "
    "`upstream` the URL of the policy. Alerts and a dashboard on them are in `deploy/`.\n"
)


def _metrics(title: str, registry: CollectorRegistry, note: str) -> str:
    lines = [f"# {title}", "", GENERATED, *([note] if note else [])]
    lines += ["| name | type | labels | meaning |", "|---|---|---|---|"]
    declared = {
        name: getattr(collector, "_labelnames", ())
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    for family in sorted(registry.collect(), key=lambda family: family.name):
        names = {label for sample in family.samples for label in sample.labels} - {"le"}
        names |= set(declared.get(family.name, ())) | set(getattr(family, "_labelnames", ()))
        labels = ", ".join(f"`{label}`" for label in sorted(names))
        name = family.name + ("_total" if family.type == "counter" else "")
        lines.append(f"| `{name}` | {family.type} | {labels} | {_cell(family.documentation)} |")
    return "\n".join([*lines, ""])


PAGES = {
    "flags.md": flags_page,
    "vllm_flags.md": vllm_page,
    "metrics.md": metrics_page,
    "gateway_metrics.md": gateway_metrics_page,
}

OWN_FLAGS = frozenset(
    {
        "--allow-unknown-fields",
        "--backend",
        "--cooperative-offload",
        "--default-max-tokens",
        "--disable-access-log",
        "--drain-timeout-seconds",
        "--idempotency-max-bytes",
        "--idempotency-ttl-seconds",
        "--kv-reservation",
        "--max-engine-deaths",
        "--max-num-waiting",
        "--max-request-bytes",
        "--num-threads",
        "--step-log",
        "--stream-buffer-tokens",
    }
)
"""Our flags that vLLM doesn't have; every other one means what it means there."""


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(page())


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is None:
        return "-"
    if field.default == ():
        return "none"
    if is_switch(field):
        return "on" if field.default else "off"
    return f"`{field.default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
