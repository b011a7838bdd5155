"""Operators a model is written in, and their capture into a program that replays without Python.

Owns the `Ops` protocol, its native and torch implementations and weight packing. Knows no model.
"""
