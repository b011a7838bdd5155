"""Takt: an LLM inference engine whose contract is tail latency."""

__version__ = "0.1.0"
