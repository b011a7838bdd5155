"""Devices and the links between them as one weighted graph, and groups of ranks placed on it."""
