"""`Ops` in eager PyTorch on fp32 values: the readable reference that other backends are held to.

Owns no speed, and no bit-equality across batches: torch picks the order of a sum by its shape.
"""
