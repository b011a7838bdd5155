"""A run's results as they are written: what was asked, where, and what came of it."""

from __future__ import annotations

import datetime
import os
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from takt.bench.options import BenchOptions
from takt.bench.summary import Summary
from takt.parallel.cpu_name import cpu_name

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """The surroundings of a run."""

    url: str
    model: str
    server: str
    """Name and version, where the server tells them."""
    machine: str
    started: str
    has_exact_prompts: bool
    options: dict[str, Any]


def make_setting(
    options: BenchOptions, url: str, model: str, server: str, has_exact_prompts: bool
) -> Setting:
    """Raises nothing; the key is left out of the options."""
    shown = asdict(options)
    del shown["api_key"]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Setting(url, model, server, machine_name(), now, has_exact_prompts, shown)


def machine_name() -> str:
    """The processor's name and the CPUs this process may use."""
    return f"{cpu_name()}, {len(os.sched_getaffinity(0))} CPUs"


def to_json(setting: Setting, summary: Summary) -> bytes:
    document = {"format": FORMAT_VERSION, "setting": setting, "summary": summary}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
