"""The score of each scenario, for literal times."""

import pytest

from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.scenarios.base import Score
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.scenarios.table import SCENARIOS
from tests.unit.loadgen.scenarios.records import config, record


def score(of: Record, run: RunConfig) -> Score:
    return SCENARIOS[run.scenario].score(of, run)


def figures(of: Record, run: RunConfig) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in score(of, run).figures}


def test_server_scores_the_rate_of_the_answers_as_mlperf_does() -> None:
    # Four answers, the last 2 s after the first arrival: (4 - 1) / 2 s.
    queries = record([0, 500, 1000, 1500], [10, 20, 30, 500])
    scored = figures(queries, config(ScenarioName.SERVER, rate=2.0))
    assert scored == {"completed queries": 1.5, "latency p99": 500}


def test_single_stream_scores_the_estimate_that_early_stopping_confirms() -> None:
    # 64 queries allow one miss at 90 %: the estimate is the slowest of all.
    run = config(ScenarioName.SINGLE_STREAM, percentile=90.0)
    queries = record([10 * k for k in range(64)], range(1, 65))
    scored = figures(queries, run)
    assert scored["latency p90 by early stopping"] == 64
    assert scored["latency p90"] == 58
    assert scored["mean latency"] == 32.5
    assert score(queries, run).unmet == ()


def test_early_stopping_discards_as_many_queries_as_mlperfs_log_says() -> None:
    # LoadGen prints that it discards 545 of 6001 queries for the 90th percentile.
    queries = record(range(6001), range(1, 6002))
    scored = figures(queries, config(ScenarioName.SINGLE_STREAM, percentile=90.0))
    assert scored["latency p90 by early stopping"] == 6001 - 545


def test_too_few_queries_for_an_estimate_are_named() -> None:
    run = config(ScenarioName.SINGLE_STREAM, percentile=90.0)
    scored = score(record(range(63), [1] * 63), run)
    assert scored.figures[0].value is None
    assert scored.unmet == ("too short: 63 queries after the warm-up; an estimate of p90 needs 64",)


def test_a_multi_stream_query_takes_as_long_as_its_slowest_sample_and_fails_with_any() -> None:
    run = config(ScenarioName.MULTI_STREAM, samples_per_query=3, slo_ms=10.0)
    latencies = [1, 9, 2, 5, 5, 5, 11, 1, 1, 2, 2, 2]
    queries = record([0] * 3 + [20] * 3 + [40] * 3 + [60] * 3, latencies, slo_ms=10.0, failed=[10])
    scored = score(queries, run)
    assert (scored.queries, scored.good) == (4, 2)
    # Three were answered, the last at 51 ms.
    assert figures(queries, run)["mean latency"] == pytest.approx((9 + 5 + 11) / 3)
    assert figures(queries, run)["completed queries"] == pytest.approx(2 / 0.051)
    assert figures(queries, run)["latency p99"] is None


def test_a_group_that_an_interrupt_has_cut_does_not_count() -> None:
    run = config(ScenarioName.MULTI_STREAM, samples_per_query=3)
    assert score(record([0] * 5, [1] * 5), run).queries == 1


def test_offline_scores_the_samples_over_the_time_until_the_last_answer() -> None:
    run = config(ScenarioName.OFFLINE)
    assert figures(record([0] * 4, [100, 200, 300, 400]), run) == {"samples": 10}
    # A lost sample is no throughput.
    assert figures(record([0] * 4, [100, 200, 300, 400], failed=[0]), run) == {"samples": pytest.approx(7.5)}
    assert not score(record([0] * 4, [100, 200, 300, 400]), run).is_sample


def test_a_job_is_pending_until_its_first_answer_and_lasts_until_the_last() -> None:
    run = config(ScenarioName.JOBS, rate=1.0, samples_per_query=2)
    jobs = record([0, 0, 1000, 1000], [10, 30, 20, 60])
    assert figures(jobs, run) == {
        "time of a job p99": 60,
        "mean time of a job": 45,
        "mean pending time": 15,
        "pending time p99": 20,
        # From the launch of the first to the end of the second, at 1060 ms.
        "completed jobs": pytest.approx(1 / 1.06),
    }


def test_concurrency_needs_a_number_of_queries_only_for_an_objective() -> None:
    queries = record([0, 10], [10, 10])
    assert score(queries, config(ScenarioName.CONCURRENCY)).sample is None
    judged = record([0, 10], [10, 10], slo_ms=20.0)
    assert score(judged, config(ScenarioName.CONCURRENCY, slo_ms=20.0)).sample == 2


@pytest.mark.parametrize("scenario", [ScenarioName.SERVER, ScenarioName.CONCURRENCY])
def test_queries_that_the_client_gave_up_do_not_count(scenario: ScenarioName) -> None:
    queries = record([0, 10, 20], [1, 1, 1])
    queries.status[1] = Status.CANCELLED
    assert score(queries, config(scenario)).queries == 2


def test_a_job_is_what_is_left_of_it_when_the_client_gives_up_some_of_its_queries() -> None:
    run = config(ScenarioName.JOBS, rate=1.0, samples_per_query=2, slo_ms=20.0)
    jobs = record([0, 0, 1000, 1000, 2000, 2000], [10, 30, 5, 60, 1, 1], slo_ms=20.0)
    jobs.status[[1, 2, 4, 5]] = Status.CANCELLED
    scored = score(jobs, run)
    # Of the first job the answer after 10 ms is left, of the second the one after 60 ms, and nothing of the third.
    assert (scored.queries, scored.good) == (2, 1)
    assert figures(jobs, run)["mean time of a job"] == 35
    assert figures(jobs, run)["mean pending time"] == 35


@pytest.mark.parametrize(
    ("settings", "unmet"),
    [
        ({"min_duration_s": 0.02}, ()),
        ({"min_queries": 3}, ()),
        ({"min_duration_s": 0.021}, ("too short: 0.020 s of --min-duration 0.021",)),
        ({"min_queries": 4}, ("too short: 3 queries of --min-queries 4",)),
        ({"min_queries": 4, "each_once": True}, ()),
    ],
)
def test_a_run_that_has_not_reached_its_minima_says_so(settings: dict[str, object], unmet: tuple[str, ...]) -> None:
    assert score(record([0, 10, 20], [1, 1, 1]), config(ScenarioName.SERVER, **settings)).unmet == unmet


def test_offline_lasts_until_its_last_answer() -> None:
    queries = record([0, 0], [10, 30])
    assert score(queries, config(ScenarioName.OFFLINE, min_duration_s=0.03)).unmet == ()
    assert len(score(queries, config(ScenarioName.OFFLINE, min_duration_s=0.031)).unmet) == 1


def test_a_warm_up_counts_from_the_time_at_which_a_query_is_due() -> None:
    run = config(ScenarioName.CONCURRENCY, warmup_s=0.01)
    assert score(record([0, 9, 10, 11], [50, 50, 1, 1]), run).queries == 2
