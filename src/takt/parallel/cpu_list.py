"""Lists of CPUs as the kernel writes them: `0-3,8,10-11`."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CPUS = 1 << 16
"""Far above what a kernel is built for; a range in a text from elsewhere may name any number."""

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Ascending numbers; raises `ValueError` for anything else than numbers and ranges of CPUs."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MAX_CPUS:
            raise ValueError(f"{part[:32]!r} is no CPU and no range of CPUs")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest such text."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
