"""Where a decode step's time goes; no bar, but the first thing to look at when one is missed."""

from __future__ import annotations

from benchmarks.cpu.bar import BarResult, BenchSetting

from takt.cli.profile import ProfileRequest, run_profile
from takt.config import EngineConfig, ModelConfigOptions
from takt.observe.profile_tables import summary


def measure(setting: BenchSetting) -> BarResult:
    request = ProfileRequest(prefill_tokens=0, num_steps=setting.scaled(200, 5))
    config = EngineConfig(model=ModelConfigOptions(model=setting.model))
    ((name, profile),) = run_profile(config, request)
    details = {f"{row.name}, us": row.total_us for row in profile.kinds()}
    details["waiting, %"] = 100 * profile.total().waiting_share
    return BarResult(details=details, notes=[f"{name}; {summary(profile)}"])
