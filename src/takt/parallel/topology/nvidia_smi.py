"""Accelerators from the text of `nvidia-smi topo -m`."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

from takt.parallel.cpu_list import parse_cpu_list
from takt.parallel.topology.accelerators import Accelerators, Level
from takt.parallel.topology.errors import TopologyError
from takt.parallel.topology.graph import Device

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LINKS = re.compile(r"NV(\d{1,3})", re.ASCII)
_NODE = re.compile(r"\d{1,9}", re.ASCII)
_LEVELS = {level.name: level for level in Level} | {"SOC": Level.SYS}
"""SOC is what drivers before 2017 wrote for SYS."""


def accelerators_from_text(text: str, source: str) -> Accelerators:
    """Reads the matrix; lines and columns of network cards are left out.

    Raises `TopologyError` naming `source` and the line that makes no sense.
    """
    lines = [line for line in _ESCAPES.sub("", text).splitlines() if line.strip()]
    header_at = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if header_at is None:
        raise TopologyError(
            f"{source}: no line begins the matrix of GPUs; give the output of nvidia-smi topo -m"
        )
    names = [name for name in lines[header_at].split() if re.fullmatch(r"GPU\d+", name)]
    if len(set(names)) < len(names):
        raise TopologyError(f"{source}: two columns have the same name")
    columns = _columns(lines[header_at])
    rows = {}
    for line in lines[header_at + 1 :]:
        name = line.split()[0]
        if name in names:
            rows[name] = line
    missing = [name for name in names if name not in rows]
    if missing:
        raise TopologyError(f"{source}: {missing[0]} is a column but has no line")
    return _from_rows(names, columns, rows, source)


def nvidia_smi_text() -> str | None:
    """What the program prints, or None where it is not installed or finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        run = subprocess.run(
            [program, "topo", "-m"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout if run.returncode == 0 and "GPU0" in run.stdout else None


def _from_rows(
    names: list[str], columns: list[str], rows: dict[str, str], source: str
) -> Accelerators:
    levels: list[list[Level | None]] = []
    counts: list[list[int]] = []
    devices = []
    for name in names:
        cells = rows[name].split()[1:]
        if len(cells) < len(columns):
            raise TopologyError(f"{source}: the line of {name} has too few entries")
        by_column = dict(zip(columns, cells, strict=False))
        pairs = [_pair(by_column[other], name, other, source) for other in names]
        levels.append([level for level, _ in pairs])
        counts.append([count for _, count in pairs])
        devices.append(_device(name, cells[len(columns) :], source))
    for a in range(len(names)):
        for b in range(a):
            if levels[a][b] != levels[b][a] or counts[a][b] != counts[b][a]:
                raise TopologyError(
                    f"{source}: {names[a]} and {names[b]} disagree on the link between them"
                )
    return Accelerators(source, tuple(devices), levels, counts)


def _pair(cell: str, a: str, b: str, source: str) -> tuple[Level | None, int]:
    if (a == b) != (cell == "X"):
        raise TopologyError(f"{source}: {a} to {b} is {cell!r}; X belongs on the diagonal alone")
    if cell == "X":
        return None, 0
    if match := _LINKS.fullmatch(cell):
        return None, int(match[1])
    if cell not in _LEVELS:
        known = ", ".join([*_LEVELS, "NV#"])
        raise TopologyError(f"{source}: {a} to {b} is {cell[:32]!r}; known: {known}")
    return _LEVELS[cell], 0


def _device(name: str, affinity: list[str], source: str) -> Device:
    """CPUs and NUMA node follow the matrix; either may be N/A."""
    cpus: tuple[int, ...] = ()
    if affinity and re.fullmatch(r"[\d,-]+", affinity[0]):
        try:
            cpus = parse_cpu_list(affinity[0])
        except ValueError as error:
            raise TopologyError(f"{source}: the CPUs of {name}: {error}") from None
    node = None
    if len(affinity) > 1 and _NODE.fullmatch(affinity[1]):
        node = int(affinity[1])
    return Device(name, numa_node=node, cpus=cpus)


def _is_header(line: str) -> bool:
    words = line.split()
    return bool(words) and words[0] == "GPU0" and not {"X", "PIX", "SYS"} & set(words)


def _columns(header: str) -> list[str]:
    """Names of GPUs and network cards, up to the columns of affinities."""
    return list(itertools.takewhile(lambda w: w not in ("CPU", "NUMA", "GPU"), header.split()))
