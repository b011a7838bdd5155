"""Every default, once. A field's metadata is its flag's help and its row in docs/reference."""

from takt.config.engine import (
    MAX_TARGET_MS,
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    SchedulerOptions,
)
from takt.config.home import cache_home
from takt.config.option import check_choices
from takt.config.parallel import ParallelOptions
from takt.config.server import ServerOptions

__all__ = [
    "MAX_TARGET_MS",
    "CacheOptions",
    "EngineConfig",
    "ModelConfigOptions",
    "ParallelOptions",
    "SchedulerOptions",
    "ServerOptions",
    "cache_home",
    "check_choices",
]
