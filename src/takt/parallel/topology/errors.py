"""Mistakes in what is asked of the topology; the command line exits with 2."""

from __future__ import annotations

from takt.errors import ConfigError


class TopologyError(ConfigError):
    """A source that cannot be read, or sizes that do not divide the devices."""
