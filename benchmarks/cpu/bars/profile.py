"""`takt profile`: whether it is there."""

from __future__ import annotations

from benchmarks.cpu.bar import BarResult, BenchSetting

from takt.cli.main import known_flags


def measure(setting: BenchSetting) -> BarResult:
    if known_flags("profile") is None:
        return BarResult.not_built("there is no command `takt profile`")
    return BarResult.not_measured("run `takt profile` for the time of each instruction")
