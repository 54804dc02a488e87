"""The metrics of models, added up over the processes that report them."""

import pytest

from sluice.gateway.observability import custom_metrics
from sluice.gateway.observability.custom_metrics import CustomMetrics
from sluice.gateway.observability.exposition import exposition
from sluice.models.backends.metric_updates import MetricKind, MetricUpdate

COUNTER, GAUGE, HISTOGRAM = MetricKind


def text(metrics: CustomMetrics) -> str:
    return exposition(metrics.groups()).decode()


def test_counters_add_up_and_gauges_do_not() -> None:
    metrics = CustomMetrics()
    for value in (2, 3.5):
        metrics.update("m:1", [MetricUpdate("runs", "Runs.", COUNTER, (("a", "x\ny"),), value)])
        metrics.update("m:1", [MetricUpdate("load", 'A "load"', GAUGE, (), value)])
    assert text(metrics).splitlines() == [
        "# HELP runs Runs.",
        "# TYPE runs counter",
        'runs{a="x\\ny"} 5.5',
        '# HELP load A "load"',
        "# TYPE load gauge",
        "load 3.5",
    ]


def test_the_metrics_of_a_model_go_with_it() -> None:
    metrics = CustomMetrics()
    metrics.update("m:1", [MetricUpdate("runs", "", COUNTER, (("a", "1"),), 1)])
    metrics.update("n:1", [MetricUpdate("runs", "", COUNTER, (("a", "2"),), 1)])
    metrics.forget({"m:1"})
    assert text(metrics).splitlines()[2:] == ['runs{a="2"} 1']
    metrics.forget({"n:1"})
    assert text(metrics) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        MetricUpdate("runs", "", GAUGE, (), 1),
        MetricUpdate("sluice_build_info", "", GAUGE, (), 1),
        MetricUpdate("sizes", "", HISTOGRAM, (), 1, (1.0,), (1, 2, 3)),
        MetricUpdate("other", "", COUNTER, (('a"b', "1"),), 1),
    ],
)
def test_what_does_not_fit_is_left_out_and_said_once(wrong: MetricUpdate, caplog: pytest.LogCaptureFixture) -> None:
    metrics = CustomMetrics()
    metrics.update("m:1", [MetricUpdate("runs", "", COUNTER, (), 1)])
    before = text(metrics)
    for _ in range(3):
        metrics.update("n:1", [wrong])
    assert text(metrics) == before
    assert [record.getMessage() for record in caplog.records] == ["metric left out"]


def test_the_number_of_metrics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_metrics, "MOST_ALL", 2)
    metrics = CustomMetrics()
    for number in range(4):
        metrics.update("m:1", [MetricUpdate("runs", "", COUNTER, (("a", str(number)),), 1)])
    assert len(text(metrics).splitlines()) == 4
