import msgspec
import pytest

from sluice.loadgen.records.statistics import Distribution, QueryStatistics
from sluice.loadgen.records.validity import invalid_reasons

METRICS = QueryStatistics(
    queries=1000,
    ok=1000,
    shed=0,
    error=0,
    timeout=0,
    dropped=0,
    cancelled=0,
    good=1000,
    offered_per_s=100.0,
    completed_per_s=100.0,
    goodput_per_s=100.0,
    attainment=1.0,
    confirmed=True,
    queries_to_confirm=459,
    latency_ms=None,
    service_ms=None,
    lateness_ms=None,
    waiting_ms=None,
    waited=0,
)


def late(p99: float) -> QueryStatistics:
    return msgspec.structs.replace(METRICS, lateness_ms=Distribution(0, 0, 0, 0, 0, p99, p99, p99))


def test_a_good_run_is_valid() -> None:
    assert invalid_reasons(late(0.5), 10, 99, interrupted=False, sample=1000) == []


@pytest.mark.parametrize(
    ("p99_ms", "slo_ms", "valid"),
    [(1.0, None, True), (1.01, None, False), (1.0, 10, True), (1.01, 10, False), (5.0, 100, True), (5.01, 100, False)],
)
def test_lateness_may_be_a_millisecond_or_a_twentieth_of_the_objective(
    p99_ms: float, slo_ms: float | None, valid: bool
) -> None:
    reasons = invalid_reasons(late(p99_ms), slo_ms, 99, interrupted=False, sample=1000)
    assert [reason[:21] for reason in reasons] == ([] if valid else ["limited by the client"])


def test_too_few_queries_prove_nothing_even_without_a_miss() -> None:
    reasons = invalid_reasons(METRICS, 10, 99, interrupted=False, sample=458)
    assert [reason.partition(";")[0] for reason in reasons] == ["too short: 458 queries after the warm-up"]
    assert invalid_reasons(METRICS, 10, 90, interrupted=False, sample=458) == []


def test_queries_that_are_no_sample_need_no_number() -> None:
    assert invalid_reasons(METRICS, 10, 99, interrupted=False, sample=None) == []


def test_lateness_counts_only_where_queries_are_due_one_by_one() -> None:
    assert invalid_reasons(late(50), 10, 99, interrupted=False, sample=1000, is_paced=False) == []


def test_an_interrupted_run_is_invalid() -> None:
    assert invalid_reasons(METRICS, 10, 99, interrupted=True, sample=1000) == ["interrupted before its end"]


def test_waits_for_the_target_are_not_the_fault_of_the_client() -> None:
    waits = Distribution(500, 500, 500, 500, 500, 500, 500, 500)
    overloaded = msgspec.structs.replace(late(0.5), dropped=3, waited=900, waiting_ms=waits)
    assert invalid_reasons(overloaded, 10, 99, interrupted=False, sample=1000) == []
