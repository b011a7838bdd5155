"""What a command does not need is not loaded for it: that is most of a short command's time."""

from __future__ import annotations

import subprocess
import sys

NOT_FOR_GENERATE = (
    "aiohttp", "asyncio", "huggingface_hub", "jinja2", "opentelemetry", "prometheus_client",
    "redis", "rich.progress", "starlette", "takt.server.chat", "torch", "urllib.request",
    "uvicorn", "zmq",
)  # fmt: skip

LOADED_BY_GENERATE = """
import sys
from takt.cli.main import make_app
make_app("generate")
import takt.cli.talk, takt.ops.native.ops
print(*sys.modules)
"""


def test_generate_loads_no_server() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED_BY_GENERATE], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "takt.llm" in loaded
    assert not set(NOT_FOR_GENERATE) & set(loaded)
