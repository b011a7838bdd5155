"""`Ops` on CPUs: captures a model's operators into programs that `takt._native` replays.

Owns the thread pool, packed weights and KV pools; knows no model and no request.
"""
