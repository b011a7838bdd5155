"""Takt: an LLM inference engine whose contract is tail latency."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from takt.llm import LLM as LLM
    from takt.types.sampling_params import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

# Imported on first use: most of the package does without, and `import takt` stays quick.
_PLACES = {"LLM": "takt.llm", "SamplingParams": "takt.types.sampling_params"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
