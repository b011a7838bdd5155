"""The ledger's totals as counters."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from takt.observe.ledger.causes import Cause
from takt.observe.ledger.ledger import Ledger


class LedgerMetrics(Collector):
    """Reads a ledger, settled or not, when it is scraped."""

    def __init__(
        self, ledger: Ledger, registry: CollectorRegistry, model_name: str, engine: str = "0"
    ) -> None:
        self._ledger = ledger
        self._labels = {"model_name": model_name, "engine": engine}
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def _families(self) -> list[Metric]:
        ledger, values = self._ledger, list(self._labels.values())
        seconds: list[Metric] = []
        numbers: list[Metric] = []
        for name, what, totals in (
            ("gap", "gaps between tokens", ledger.late_gaps),
            ("first_token", "times to the first token", ledger.late_first_tokens),
        ):
            spent = CounterMetricFamily(
                f"takt_late_{name}_seconds",
                f"Time of {what} beyond their target, by cause.",
                labels=[*self._labels, "cause"],
            )
            for cause in Cause:
                spent.add_metric([*values, cause.label], float(totals.split_ns[cause]) / 1e9)
            number = CounterMetricFamily(
                f"takt_late_{name}s", f"Late {what}.", labels=list(self._labels)
            )
            number.add_metric(values, totals.num)
            seconds.append(spent)
            numbers.append(number)
        whole = ledger.windows.whole()
        good = CounterMetricFamily(
            "takt_good_requests",
            "Requests whose first token was in time, and the P99 of whose gaps was.",
            labels=list(self._labels),
        )
        good.add_metric(values, whole.num_good_requests)
        target = GaugeMetricFamily(
            "takt_slo_target_seconds",
            "What is late: the SLO, or what holds without one.",
            labels=[*self._labels, "slo"],
        )
        target.add_metric([*values, "itl"], ledger.gap_target_ns / 1e9)
        target.add_metric([*values, "ttft"], ledger.ttft_target_ns / 1e9)
        return [*seconds, *numbers, good, target]
