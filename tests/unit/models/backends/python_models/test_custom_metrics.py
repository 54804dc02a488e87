"""Triton's classes of metrics, in the process of a model."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.models.backends.metric_updates import MetricKind, MetricUpdate
from sluice.models.backends.python_models import custom_metrics
from sluice.models.backends.python_models.custom_metrics import MetricFamily, take_updates

COUNTER, GAUGE, HISTOGRAM = MetricFamily.COUNTER, MetricFamily.GAUGE, MetricFamily.HISTOGRAM


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_metrics._registry, "families", {})
    monkeypatch.setattr(custom_metrics._registry, "series", {})


def test_what_changed_is_reported_once() -> None:
    runs = MetricFamily("runs", "Runs.", COUNTER).Metric({"b": "2", "a": "1"})
    load = MetricFamily(name="load", description="Load.", kind=GAUGE).Metric()
    labels = (("a", "1"), ("b", "2"))
    assert take_updates() == (
        MetricUpdate("runs", "Runs.", MetricKind.COUNTER, labels, 0),
        MetricUpdate("load", "Load.", MetricKind.GAUGE, (), 0),
    )
    assert take_updates() == ()
    runs.increment(2)
    runs.increment(3)
    load.set(7)
    load.increment(-2)
    assert [update.value for update in take_updates()] == [5, 5]
    runs.increment(1)
    assert [update.value for update in take_updates()] == [1]
    assert (runs.value(), load.value()) == (6, 5)


def test_a_histogram_counts_by_bucket() -> None:
    sizes = MetricFamily("sizes", "Sizes.", HISTOGRAM).Metric(buckets=[1, 10])
    for value in (0.5, 1, 3, 100):
        sizes.observe(value)
    (update,) = take_updates()
    assert (update.buckets, update.counts, update.value) == ((1, 10), (2, 1, 1), 104.5)
    sizes.observe(2)
    assert [update.counts for update in take_updates()] == [(0, 1, 0)]


def test_the_same_name_and_labels_are_the_same_metric() -> None:
    MetricFamily("runs", "Runs.", COUNTER).Metric({"a": "1"}).increment(1)
    assert MetricFamily("runs", "Runs.", COUNTER).Metric({"a": "1"}).value() == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: MetricFamily("1st", "", COUNTER), "metric '1st': expected a name of letters"),
        (lambda: MetricFamily("sluice_requests", "", COUNTER), "names that begin with sluice_, nv_"),
        (lambda: MetricFamily("h", "", HISTOGRAM).Metric(), "expected buckets for a HISTOGRAM"),
        (lambda: MetricFamily("c", "", COUNTER).Metric(buckets=[1]), "expected no buckets for a COUNTER"),
        (lambda: MetricFamily("h", "", HISTOGRAM).Metric(buckets=[2, 1]), "expected ascending buckets"),
        (lambda: MetricFamily("c", "", COUNTER).Metric({"a-b": "1"}), "label 'a-b'"),
        (lambda: MetricFamily("c", "", COUNTER).Metric().increment(-1), "a counter cannot be decreased, got -1"),
        (lambda: MetricFamily("c", "", COUNTER).Metric().set(1), "a COUNTER has no set"),
        (lambda: MetricFamily("g", "", GAUGE).Metric().observe(1), "a GAUGE has no observe"),
        (lambda: [MetricFamily("c", "", COUNTER), MetricFamily("c", "", GAUGE)], "it is a COUNTER already, got GAUGE"),
    ],
)
def test_a_wrong_metric(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_the_number_of_metrics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_metrics, "MOST_SERIES", 2)
    family = MetricFamily("c", "", COUNTER)
    for label in ("1", "2", "2"):
        family.Metric({"a": label})
    with pytest.raises(ValueError, match="a model may define 2 metrics at most"):
        family.Metric({"a": "3"})
