"""Writes a GGUF file as a bf16 Hugging Face folder, with the libraries that the tests use.

python unpack_gguf.py FILE.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    source, folder = Path(sys.argv[1]).resolve(), sys.argv[2]
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
