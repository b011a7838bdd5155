"""Histograms with one writer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Histogram:
    """One series of buckets: an observation is a bisection and two additions, no lock."""

    def __init__(self, bounds: Sequence[float], label_values: Sequence[str]) -> None:
        self.label_values = list(label_values)
        self._bounds = list(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_many(self, values: npt.NDArray[np.float64]) -> None:
        """float64 `[num_values]`."""
        places = np.searchsorted(self._bounds, values)
        for place, count in enumerate(np.bincount(places, minlength=len(self._counts)).tolist()):
            self._counts[place] += count
        self._sum += float(values.sum())

    @property
    def sum(self) -> float:
        return self._sum

    def cumulative(self) -> list[tuple[str, float]]:
        """Observations up to each bound, by its name."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets, total = [], 0
        for name, count in zip(names, self._counts, strict=True):
            total += count
            buckets.append((name, float(total)))
        return buckets


class HistogramFamily(Collector):
    """Histograms of one name, told apart by their labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        label_names: Sequence[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label_names = list(label_names)
        self._buckets = buckets
        self._series: list[Histogram] = []
        registry.register(self)

    def labels(self, *values: str) -> Histogram:
        """A new series."""
        self._series.append(Histogram(self._buckets, values))
        return self._series[-1]

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for series in self._series:
            family.add_metric(series.label_values, series.cumulative(), series.sum)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=self._label_names)
