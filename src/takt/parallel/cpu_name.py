"""What this machine's processor is called."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
