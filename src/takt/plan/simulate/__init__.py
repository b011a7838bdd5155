"""A server on a virtual clock: the engine's scheduler and KV accounting, steps of modelled length.

The only simulator; it draws no conclusion, it returns what requests would have seen.
"""
