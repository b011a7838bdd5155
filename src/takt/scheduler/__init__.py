"""Policies that decide what each step computes. Pure Python, injected clock.

Owns requests' state and the decision; asks the KV pool for room. Touches no tensor and does no I/O.
"""
