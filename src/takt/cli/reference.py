"""Writes docs/reference from the code: options with their defaults, vLLM's flags, metrics."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from takt.cli.options import PANELS, SERVER_TABLES, flag_of, is_switch
from takt.cli.vllm_flags import VLLM_FLAGS, Mapped, Refused
from takt.observe.metrics import describe_metrics

GENERATED = "Written by `make reference`; do not edit by hand.\n"


def flags_page() -> str:
    """Every option: flag, default, choices, meaning."""
    lines = ["# Flags and defaults", "", GENERATED]
    for table in SERVER_TABLES:
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
    rows: dict[str, str] = {flag: "same" for flag in ours if flag in SAME_AS_VLLM}
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
    own = sorted(ours - SAME_AS_VLLM)
    lines += ["", "Flags of our own: " + ", ".join(f"`{flag}`" for flag in own) + ".", ""]
    return "\n".join(lines)


def metrics_page() -> str:
    lines = ["# Metrics", "", GENERATED, "| name | type | labels | meaning |", "|---|---|---|---|"]
    for metric in describe_metrics():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {_cell(metric.help)} |")
    return "\n".join([*lines, ""])


PAGES = {"flags.md": flags_page, "vllm_flags.md": vllm_page, "metrics.md": metrics_page}

SAME_AS_VLLM = frozenset(
    flag_of(name)
    for name in (
        "allowed_origins api_key block_size chat_template dtype enable_chunked_prefill "
        "enable_prefix_caching enable_request_id_headers enforce_eager gpu_memory_utilization "
        "host kv_cache_dtype kv_cache_memory_bytes load_format log_level max_logprobs "
        "max_model_len max_num_batched_tokens max_num_seqs model port scheduling_policy "
        "served_model_name ssl_certfile ssl_keyfile tokenizer uds"
    ).split()
)


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
