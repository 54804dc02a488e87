"""The metrics that a model defines: Triton's classes `MetricFamily` and `Metric`.

The values are those of this process. Their changes go to the server with the answer to each batch, which adds up the
counters and histograms of all processes of a model.
"""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from sluice.models.backends.metric_updates import LABEL, MOST_SERIES, MetricKind, MetricUpdate, check_family
from sluice.models.backends.python_models.wire import sendable


class _Series:
    """A metric of this process, with the changes that were not sent."""

    __slots__ = ("buckets", "changed", "counts", "sent", "sent_counts", "value")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.value = 0.0
        self.counts = [0] * (len(buckets) + 1 if buckets else 0)
        self.sent = 0.0
        self.sent_counts = list(self.counts)
        self.changed = True


class _Registry:
    """All metrics of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.families: dict[str, MetricFamily] = {}
        self.series: dict[tuple[str, tuple[tuple[str, str], ...]], _Series] = {}

    def take_updates(self) -> tuple[MetricUpdate, ...]:
        """The changes since the last call."""
        with self.lock:
            return tuple(
                self._update(name, labels, series) for (name, labels), series in self.series.items() if series.changed
            )

    def _update(self, name: str, labels: tuple[tuple[str, str], ...], series: _Series) -> MetricUpdate:
        family = self.families[name]
        value = series.value if family.kind is MetricKind.GAUGE else series.value - series.sent
        counts = tuple(now - before for now, before in zip(series.counts, series.sent_counts, strict=True))
        series.sent, series.sent_counts, series.changed = series.value, list(series.counts), False
        return MetricUpdate(name, family.description, family.kind, labels, value, series.buckets, counts)


_registry = _Registry()
take_updates = _registry.take_updates


class Metric:
    """A metric with the labels that it was given; families make it."""

    def __init__(self, family: "MetricFamily", series: _Series) -> None:
        self._family = family
        self._series = series

    def increment(self, value: float) -> None:
        """Add to a counter, to which nothing negative may be added, or to a gauge. Raises ValueError."""
        self._expect("increment", MetricKind.COUNTER, MetricKind.GAUGE)
        value = float(value)  # it may be one of numpy's, which no message may have
        if value < 0 and self._family.kind is MetricKind.COUNTER:
            raise ValueError(f"metric '{self._family.name}': a counter cannot be decreased, got {value}")
        with _registry.lock:
            self._series.value += value
            self._series.changed = True

    def set(self, value: float) -> None:
        """Set a gauge; raises ValueError for other kinds."""
        self._expect("set", MetricKind.GAUGE)
        with _registry.lock:
            self._series.value = float(value)
            self._series.changed = True

    def observe(self, value: float) -> None:
        """Add a value to a histogram; raises ValueError for other kinds."""
        self._expect("observe", MetricKind.HISTOGRAM)
        value = float(value)
        with _registry.lock:
            self._series.value += value
            self._series.counts[bisect_left(self._series.buckets, value)] += 1
            self._series.changed = True

    def value(self) -> float:
        """The value in this process; raises ValueError for a histogram."""
        self._expect("value", MetricKind.COUNTER, MetricKind.GAUGE)
        return self._series.value

    def _expect(self, operation: str, *kinds: MetricKind) -> None:
        if self._family.kind not in kinds:
            raise ValueError(f"metric '{self._family.name}': a {self._family.kind.name} has no {operation}")


class MetricFamily:
    """Metrics of one name that differ in their labels; making it again gives the same metrics.

    Raises ValueError for a name that the server or another kind of metric has.
    """

    COUNTER: ClassVar = MetricKind.COUNTER
    GAUGE: ClassVar = MetricKind.GAUGE
    HISTOGRAM: ClassVar = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.name, self.description, self.kind = name, sendable(str(description)), MetricKind(kind)
        check_family(name)
        with _registry.lock:
            known = _registry.families.setdefault(name, self)
        if known.kind is not self.kind:
            raise ValueError(f"metric '{name}': it is a {known.kind.name} already, got {self.kind.name}")

    def Metric(  # noqa: N802 - the name is Triton's
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The metric with these labels; a histogram has `buckets`. Raises ValueError."""
        named = tuple(sorted((str(key), sendable(str(value))) for key, value in (labels or {}).items()))
        for key, _ in named:
            if not LABEL.fullmatch(key):
                raise ValueError(f"metric '{self.name}': label '{key:.100}': expected letters, digits and '_'")
        limits = tuple(float(each) for each in (() if buckets is None else buckets))
        if bool(limits) is not (self.kind is MetricKind.HISTOGRAM):
            expected = "buckets" if self.kind is MetricKind.HISTOGRAM else "no buckets"
            raise ValueError(f"metric '{self.name}': expected {expected} for a {self.kind.name}")
        if any(after <= before for before, after in pairwise(limits)):
            raise ValueError(f"metric '{self.name}': expected ascending buckets, got {list(limits)}")
        with _registry.lock:
            if len(_registry.series) >= MOST_SERIES and (self.name, named) not in _registry.series:
                raise ValueError(f"metric '{self.name}': a model may define {MOST_SERIES} metrics at most")
            return Metric(self, _registry.series.setdefault((self.name, named), _Series(limits)))
