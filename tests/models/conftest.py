"""Tiny models, written once per session."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

import tiny_models
from tiny_models import TinyMaker


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyMaker:
    """`tiny(name)` is a Hugging Face directory, `tiny(name, "Q8_0")` a GGUF file of that type.

    Returns the path and the reference model of the values stored there.
    """
    logging.disable_progress_bar()
    # The machine may be shared: two spinning teams of threads would slow each other to a crawl.
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("tiny")

    @cache
    def make(name: str, quant_type: str | None = None) -> tuple[Path, PreTrainedModel]:
        model = tiny_models.make_model(name)
        if quant_type is None:
            model.save_pretrained(home / name)
            return home / name, model
        path = home / f"{name}.{quant_type}.gguf"
        return path, tiny_models.write_gguf(model, path, quant_type)

    return make
