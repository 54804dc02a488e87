"""The exposition in OpenMetrics, read by the parser of prometheus_client."""

from collections.abc import Callable, Iterable

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.exposition import ExposedMetric, Group, exposition
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.openmetrics import wants_openmetrics

MS = 1_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)


def served() -> ServerMetrics:
    metrics = ServerMetrics({"m:1": ["only"], "n:1": ["only"]}, ["cpu0"], tuple, lambda: 0)
    meter = metrics.meters.pipeline("m:1")
    for duration_ms, outcome in ((3, Outcome.COMPLETED), (1000, Outcome.COMPLETED_LATE), (60_000, Outcome.COMPLETED)):
        meter.request_ended(outcome, duration_ms * MS)
        meter.note_exemplar(outcome, duration_ms * MS, f"{duration_ms:032x}")
    return metrics


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("text/plain, application/openmetrics-text; q=0", False),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_a_scraper_gets_the_format_that_it_names(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


def test_the_parser_takes_it_and_finds_the_exemplars() -> None:
    metrics = served()
    text = metrics.exposition(openmetrics=True)
    parse: Callable[[str], Iterable[Metric]] = text_string_to_metric_families
    families = {family.name: family for family in parse(text.decode())}
    assert families["sluice_requests"].type == "counter"
    assert families["nv_inference_request_success"].type == "unknown"
    samples = families["sluice_request_duration_seconds"].samples
    found = {
        sample.labels["le"]: (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for sample in samples
        if sample.exemplar
    }
    assert found == {
        "0.005": (f"{3:032x}", 0.003),
        "1.0": (f"{1000:032x}", 1.0),
        "+Inf": (f"{60_000:032x}", 60.0),
    }
    assert {sample.labels["pipeline"] for sample in samples if sample.exemplar} == {"m:1"}


def test_requests_without_an_answer_are_no_examples_of_durations() -> None:
    metrics = served()
    metrics.meters.pipeline("n:1").note_exemplar(Outcome.REJECTED_DEADLINE, MS, TRACE)
    assert TRACE.encode() not in metrics.exposition(openmetrics=True)


def test_metrics_of_models_keep_their_names() -> None:
    groups = [
        Group((ExposedMetric(name, "counter", 'My "count".'),), [(f"{name} 3\n",)]) for name in ("mine", "all_total")
    ]
    assert exposition(groups, openmetrics=True) == (
        b'# HELP mine My \\"count\\".\n# TYPE mine unknown\nmine 3\n'
        b'# HELP all My \\"count\\".\n# TYPE all counter\nall_total 3\n# EOF\n'
    )
