"""Reads model files: GGUF and safetensors, hub and aliases, tokenizers and chat templates.

Yields `QuantTensor`s by slices and metadata as plain data. Packs nothing and runs nothing.
"""
