"""Late gaps: planted causes are named, and little is left unexplained."""

from __future__ import annotations

from benchmarks import contract_causes
from benchmarks.contract.cost import Run
from benchmarks.contract.session import Session
from benchmarks.cpu.bar import BarResult, BenchSetting


def measure(session: Session) -> BarResult:
    return contract_causes.measure(BenchSetting(session.model, session.is_quick, ""))


def runs(session: Session) -> list[Run]:
    return [Run("four causes, each with a server", session.seconds(330.0, 60.0))]
