"""Memory that this process may still take: the host's, or less where a cgroup limits it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_V1 = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of a page below 2**63."""


def available_memory_bytes(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes that can be taken without swapping: the least over the host and all cgroups above us.

    Page cache counts as available, as `MemAvailable` counts it. The arguments are the mount points.
    """
    rooms = [_host_available(proc / "meminfo")]
    rooms += [room for room in _cgroup_rooms(proc / "self" / "cgroup", cgroup) if room is not None]
    return max(min(rooms), 0)


def _host_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{meminfo} has no line MemAvailable")


def _cgroup_rooms(membership: Path, mount: Path) -> Iterator[int | None]:
    """Room left in each cgroup from ours up to the root; containers may hide some of the path."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, base = ("memory.max", "memory.current", "inactive_file"), mount
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = mount / "memory"
        else:
            continue
        here = base / path.lstrip("/")
        while True:
            yield _room(here, *names)
            if here == base:
                break
            here = here.parent


def _room(directory: Path, limit_file: str, usage_file: str, cache_key: str) -> int | None:
    try:
        limit_text = (directory / limit_file).read_text().strip()
        if limit_text == "max" or int(limit_text) >= _UNLIMITED_V1:
            return None
        usage = int((directory / usage_file).read_text())
        stat = (directory / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    cache = sum(int(line.split()[1]) for line in stat if line.split()[0] == cache_key)
    return int(limit_text) - usage + cache
