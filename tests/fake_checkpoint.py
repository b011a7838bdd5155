"""A checkpoint held in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from takt.loading.base import TensorInfo
from takt.types.quant import QuantTensor, QuantType


class FakeCheckpoint:
    """fp32 tensors by name; `metadata` as the format has it."""

    def __init__(
        self,
        checkpoint_format: str,
        metadata: dict[str, Any],
        tensors: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.format = checkpoint_format
        self.path = Path("/models/fake")
        self.metadata = metadata
        self.values = dict(tensors or {})

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(name, QuantType.F32, value.shape)
            for name, value in self.values.items()
        }

    @property
    def num_bytes_read(self) -> int:
        return 0

    def read(self, name: str, *, rows: Any = None, columns: Any = None) -> QuantTensor:
        assert rows is None and columns is None
        value = np.ascontiguousarray(self.values[name], dtype=np.float32)
        raw = value.view(np.uint8).reshape(1 if value.ndim == 1 else len(value), -1)
        return QuantTensor(raw, QuantType.F32, value.shape)

    def close(self) -> None:
        pass
