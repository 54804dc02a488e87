import msgspec
import pytest

from sluice.loadgen.records.interim import EarlyVerdict
from sluice.loadgen.records.statistics import Distribution, QueryStatistics
from sluice.loadgen.records.validity import client_limits, invalid_reasons

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
    metrics = msgspec.structs.replace(METRICS, queries=458)
    reasons = invalid_reasons(metrics, 10, 99, interrupted=False, sample=458)
    assert reasons == [
        "too short: 458 queries after the warm-up; a claim about 99 % needs 459; try --duration 5 or more"
    ]
    later = invalid_reasons(metrics, 10, 99, interrupted=False, sample=458, warmup_s=2.5)
    assert [reason.partition("; try ")[2] for reason in later] == ["--duration 8 or more"]
    assert invalid_reasons(METRICS, 10, 90, interrupted=False, sample=458) == []


@pytest.mark.parametrize(("sample", "remedy"), [(125, "--duration 37 or more"), (0, "a longer --duration")])
def test_a_short_run_of_groups_learns_how_long_it_takes_for_enough_of_them(sample: int, remedy: str) -> None:
    # 1000 samples at 100/s are 125 queries of eight: 459 take 36.72 s.
    reasons = invalid_reasons(METRICS, 10, 99, interrupted=False, sample=sample)
    assert [reason.partition("; try ")[2] for reason in reasons] == [remedy]


def test_queries_that_are_no_sample_need_no_number() -> None:
    assert invalid_reasons(METRICS, 10, 99, interrupted=False, sample=None) == []


def test_lateness_counts_only_where_queries_are_due_one_by_one() -> None:
    assert invalid_reasons(late(50), 10, 99, interrupted=False, sample=1000, is_paced=False) == []


def test_a_run_that_its_misses_have_ended_is_not_too_short() -> None:
    assert invalid_reasons(METRICS, 10, 99, interrupted=False, sample=40, decision=EarlyVerdict.EXCLUDED) == []
    assert len(invalid_reasons(METRICS, 10, 99, interrupted=False, sample=40, decision=EarlyVerdict.CONFIRMED)) == 1


def test_a_client_learns_of_a_rate_and_of_processes_only_where_its_scenario_may_have_them() -> None:
    (reason,) = invalid_reasons(METRICS, 10, 99, interrupted=False, sample=1000, cpu_share=0.9, is_paced=False)
    assert reason.endswith("try a lower --rate if there is one, or more --procs if several queries are open at a time")


@pytest.mark.parametrize(("share", "valid"), [(None, True), (0.8, True), (0.81, False), (1.0, False)])
def test_a_client_that_uses_more_than_80_percent_of_a_core_measures_itself(share: float | None, valid: bool) -> None:
    reasons = invalid_reasons(METRICS, 10, 99, interrupted=False, sample=1000, cpu_share=share)
    assert reasons == (
        []
        if valid or share is None
        else [
            f"limited by the client: it used {share * 100:.0f} % of a core, 80 % is allowed; "
            "try a lower --rate or more --procs"
        ]
    )


def test_the_lateness_without_load_tells_a_busy_machine_from_a_high_rate() -> None:
    quick, busy = (client_limits(late(5.0), 10, baseline_lateness_ms=idle) for idle in (0.08, 3.0))
    assert quick == [
        "limited by the client: it was 5.00 ms late or more with 1 % of the queries (0.08 ms without load), "
        "1 ms is allowed; try a lower --rate, a core of its own for the client, or more --procs"
    ]
    assert busy == [
        "limited by the client: it was 5.00 ms late or more with 1 % of the queries (3.00 ms without load), "
        "1 ms is allowed; the machine is too busy for any rate: give the client a core of its own"
    ]


def test_an_interrupted_run_is_invalid() -> None:
    assert invalid_reasons(METRICS, 10, 99, interrupted=True, sample=1000) == ["interrupted before its end"]


def test_waits_for_the_target_are_not_the_fault_of_the_client() -> None:
    waits = Distribution(500, 500, 500, 500, 500, 500, 500, 500)
    overloaded = msgspec.structs.replace(late(0.5), dropped=3, waited=900, waiting_ms=waits)
    assert invalid_reasons(overloaded, 10, 99, interrupted=False, sample=1000) == []
