"""The metrics that models in Python define, added up over their processes."""

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import cast

from sluice.gateway.observability.exposition import ExposedMetric, Group, Kind, labelled
from sluice.gateway.observability.logs import log
from sluice.models.backends.metric_updates import LABEL, MOST_SERIES, MetricKind, MetricUpdate, check_family

logger = logging.getLogger(__name__)

MOST_ALL = 10 * MOST_SERIES
"""The most metrics of all models together, counted by labels; further ones are left out."""
_Labels = tuple[tuple[str, str], ...]


class _Series:
    """The value of a metric, and the model that changed it last."""

    __slots__ = ("counts", "model", "value")

    def __init__(self, buckets: int) -> None:
        self.model = ""
        self.value = 0.0
        self.counts = [0] * buckets


class _Family:
    """The metrics of one name."""

    __slots__ = ("buckets", "description", "kind", "series")

    def __init__(self, update: MetricUpdate) -> None:
        self.description = update.description
        self.kind = update.kind
        self.buckets = update.buckets
        self.series: dict[_Labels, _Series] = {}


class CustomMetrics:
    """Collects the changes that the processes of models report.

    A gauge has the value that was set last. What does not fit to the metrics that are known is left out, with one line
    in the log for each name.
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._count = 0
        self._refused: set[str] = set()

    def update(self, model: str, updates: Sequence[MetricUpdate]) -> None:
        """Take the changes that a process of a model reports."""
        for each in updates:
            try:
                self._update(model, each)
            except ValueError as error:
                if each.name not in self._refused and len(self._refused) < MOST_SERIES:
                    self._refused.add(each.name)
                    log(logger, logging.WARNING, "metric left out", model=model, reason=str(error))

    def forget(self, models: Collection[str]) -> None:
        """Forget the metrics that models which are gone have changed last."""
        for name, family in list(self._families.items()):
            for labels in [labels for labels, series in family.series.items() if series.model in models]:
                del family.series[labels]
                self._count -= 1
            if not family.series:
                del self._families[name]

    def groups(self) -> Iterator[Group]:
        """The metrics under the names that the models gave."""
        for name, family in list(self._families.items()):
            yield _group(name, family)

    def _update(self, model: str, update: MetricUpdate) -> None:
        family = self._families.get(update.name)
        if family is None:
            check_family(update.name)
            family = _Family(update)
        if (family.kind, family.buckets) != (update.kind, update.buckets):
            raise ValueError(
                f"metric '{update.name}': another model has it as a {family.kind.name}, or in other buckets"
            )
        buckets = len(update.buckets) + 1 if update.kind is MetricKind.HISTOGRAM else 0
        if len(update.counts) != buckets or not all(LABEL.fullmatch(key) for key, _ in update.labels):
            raise ValueError(f"metric '{update.name}': expected {buckets} counts and labels of letters, digits and '_'")
        series = family.series.get(update.labels)
        if series is None:
            if self._count >= MOST_ALL:
                raise ValueError(f"metric '{update.name}': there are {MOST_ALL} metrics of models already")
            self._families.setdefault(update.name, family)
            series = family.series[update.labels] = _Series(buckets)
            self._count += 1
        series.model = model
        series.value = update.value if update.kind is MetricKind.GAUGE else series.value + update.value
        series.counts = [count + more for count, more in zip(series.counts, update.counts, strict=True)]


def _group(name: str, family: _Family) -> Group:
    kind = {MetricKind.COUNTER: "counter", MetricKind.GAUGE: "gauge", MetricKind.HISTOGRAM: "histogram"}
    described = ExposedMetric(name, cast(Kind, kind[family.kind]), family.description)
    return Group((described,), ((_text(name, family, *each),) for each in list(family.series.items())))


def _text(name: str, family: _Family, labels: _Labels, series: _Series) -> str:
    if family.kind is not MetricKind.HISTOGRAM:
        return f"{name}{_labels(labels)} {_number(series.value)}\n"
    limits = [*(repr(float(bound)) for bound in family.buckets), "+Inf"]
    buckets = [
        f"{name}_bucket{_labels((*labels, ('le', limit)))} {count}\n"
        for limit, count in zip(limits, accumulate(series.counts), strict=True)
    ]
    value, count = _number(series.value), sum(series.counts)
    return f"{''.join(buckets)}{name}_sum{_labels(labels)} {value}\n{name}_count{_labels(labels)} {count}\n"


def _labels(labels: _Labels) -> str:
    return labelled(tuple(name for name, _ in labels), tuple(value for _, value in labels))


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)
