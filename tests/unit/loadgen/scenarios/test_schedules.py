"""The schedule and the pacing of each scenario."""

import math

import numpy as np
import pytest

from sluice.loadgen.scenarios.config import ScenarioName
from sluice.loadgen.scenarios.table import SCENARIOS, scenario_of
from sluice.loadgen.traffic.pacing import OPEN_LOOP, Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from tests.unit.loadgen.scenarios.records import config

N = ScenarioName


def schedule(scenario: ScenarioName, samples: int, **settings: object) -> Schedule:
    return SCENARIOS[scenario].schedule(config(scenario, **settings), samples)


def pacing(scenario: ScenarioName, **settings: object) -> Pacing:
    run = config(scenario, **settings)
    return SCENARIOS[scenario].pacing(run, SCENARIOS[scenario].schedule(run, 10))


def test_a_run_with_minima_ends_with_the_first_arrival_that_reaches_both() -> None:
    by_time = schedule(N.SERVER, 10, rate=100.0, min_duration_s=2.0)
    assert by_time.due_ns[-2] < 2e9 <= by_time.due_ns[-1]
    by_queries = schedule(N.SERVER, 10, rate=100.0, min_duration_s=2.0, min_queries=1000)
    assert len(by_queries) == 1000
    assert by_queries.due_ns[-1] > 2e9


def test_the_bounds_of_a_run_win_over_its_minima() -> None:
    assert len(schedule(N.SERVER, 10, rate=100.0, min_duration_s=2.0, queries=50)) == 50
    cut = schedule(N.SERVER, 10, rate=100.0, min_queries=1000, duration_s=2.0)
    assert cut.due_ns[-1] < 2e9


@pytest.mark.parametrize("scenario", [N.SERVER, N.OFFLINE, N.SINGLE_STREAM, N.CONCURRENCY])
def test_accuracy_mode_has_each_sample_once_in_random_order(scenario: ScenarioName) -> None:
    rate = {"rate": 10.0} if scenario is N.SERVER else {}
    sample = schedule(scenario, 100, each_once=True, **rate).sample.tolist()
    assert sorted(sample) == list(range(100))
    assert sample != list(range(100))


@pytest.mark.parametrize(("scenario", "rate"), [(N.MULTI_STREAM, 0.0), (N.JOBS, 10.0)])
def test_accuracy_mode_fills_the_last_group_with_samples_of_the_first(scenario: ScenarioName, rate: float) -> None:
    made = schedule(scenario, 10, each_once=True, samples_per_query=4, rate=rate)
    assert len(made) == len(made.due_ns) == 12
    assert sorted(made.sample[:10].tolist()) == list(range(10))
    assert made.sample[10:].tolist() == made.sample[:2].tolist()


def test_the_samples_of_a_multi_stream_query_follow_each_other() -> None:
    made = schedule(N.MULTI_STREAM, 100, queries=500)
    groups = made.sample.reshape(500, 8)
    assert made.group == 8
    assert ((groups - groups[:, :1]) % 100 == np.arange(8)).all()
    assert len(set(groups[:, 0].tolist())) > 90


def test_the_queries_of_a_job_are_due_at_its_launch() -> None:
    made = schedule(N.JOBS, 100, rate=10.0, queries=3, samples_per_query=5)
    assert made.due_ns.reshape(3, 5).tolist() == [[due] * 5 for due in made.due_ns[::5].tolist()]
    assert len(set(made.due_ns.tolist())) == 3


@pytest.mark.parametrize(
    ("scenario", "settings", "outstanding", "from_issue"),
    [
        (N.SERVER, {"rate": 1.0}, None, False),
        (N.JOBS, {"rate": 1.0}, None, False),
        (N.SINGLE_STREAM, {}, 1, True),
        (N.MULTI_STREAM, {}, 8, True),
        (N.MULTI_STREAM, {"samples_per_query": 5}, 5, True),
        (N.OFFLINE, {}, 256, False),
        (N.OFFLINE, {"concurrency": 7}, 7, False),
        (N.CONCURRENCY, {}, 1, True),
        (N.CONCURRENCY, {"concurrency": 7, "rate": 5.0}, 7, True),
    ],
)
def test_the_pacing_of_each_scenario(
    scenario: ScenarioName, settings: dict[str, object], outstanding: int | None, from_issue: bool
) -> None:
    made = pacing(scenario, queries=20, **settings)
    assert (made.outstanding, made.from_issue) == (outstanding, from_issue)
    assert (made == OPEN_LOOP) == (outstanding is None)
    assert not made.repeats


def test_a_closed_loop_without_a_number_of_queries_plays_its_schedule_again() -> None:
    assert pacing(N.SINGLE_STREAM, duration_s=3.0) == Pacing(1, 1, True, True, max_ns=3e9)
    assert pacing(N.SINGLE_STREAM, min_queries=5) == Pacing(1, 1, True, True, min_ns=0, min_queries=5)
    assert not pacing(N.SINGLE_STREAM, each_once=True, duration_s=3.0).repeats


def test_the_queries_of_minima_are_groups() -> None:
    assert pacing(N.MULTI_STREAM, min_queries=5, min_duration_s=2.0) == Pacing(8, 8, True, True, 2e9, 40)


@pytest.mark.parametrize(
    ("issued", "last_ns", "now_ns", "over"),
    [(5, 0, 10, False), (9, 100, 100, False), (10, 99, 150, False), (10, 100, 150, True), (3, 3, 1000, True)],
)
def test_a_run_is_over_at_its_end_or_with_both_minima(issued: int, last_ns: int, now_ns: int, over: bool) -> None:
    assert Pacing(1, min_ns=100, min_queries=10, max_ns=1000).is_over(issued, last_ns, now_ns) == over
    assert not Pacing(1).is_over(10**9, 10**18, 10**18)
    assert math.isinf(OPEN_LOOP.max_ns)


@pytest.mark.parametrize(
    ("scenario", "settings", "message"),
    [
        (N.SERVER, {"duration_s": 1.0}, r"--rate: expected a number above 0"),
        (N.SERVER, {"rate": 1.0}, r"schedule: no end; expected --duration, --queries, or both"),
        (N.SINGLE_STREAM, {}, r"schedule: no end; expected --duration, --queries, --min-duration or --min-queries"),
        (N.SINGLE_STREAM, {"queries": 0}, r"--queries: expected 1 to 20000000, got 0"),
        (N.MULTI_STREAM, {"queries": 5, "samples_per_query": 10**8}, r"--samples-per-query: expected at most 20000000"),
        (N.SINGLE_STREAM, {"min_queries": 9, "queries": 8}, r"--min-queries: expected at most --queries \(8\), got 9"),
        (
            N.OFFLINE,
            {"min_duration_s": 9.0, "duration_s": 8.0},
            r"--min-duration: expected at most --duration \(8 s\), got 9 s",
        ),
        (
            N.OFFLINE,
            {"min_duration_s": float("nan")},
            r"--min-duration: expected a positive number of seconds, got nan",
        ),
        (N.OFFLINE, {"queries": 1, "warmup_s": 1.0}, r"--warmup: offline counts all samples; expected 0, got 1 s"),
        (N.OFFLINE, {"queries": 1, "slo_ms": 1.0}, r"--slo-ms: offline has a rate and no latency"),
    ],
)
def test_a_run_that_cannot_be_made_is_refused(
    scenario: ScenarioName, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule(scenario, 10, **settings)


@pytest.mark.parametrize(
    ("scenario", "settings", "message"),
    [
        (
            N.OFFLINE,
            {"rate": 5.0},
            "--rate: not an option of --scenario offline; it belongs to server, concurrency, jobs",
        ),
        (
            N.SERVER,
            {"concurrency": 2},
            "--concurrency: not an option of --scenario server; it belongs to offline, concurrency",
        ),
        (
            N.SINGLE_STREAM,
            {"samples_per_query": 2},
            "--samples-per-query: not an option of --scenario single-stream; it belongs to multi-stream, jobs",
        ),
        (N.CONCURRENCY, {"concurrency": 0}, "--concurrency: expected at least 1, got 0"),
    ],
)
def test_an_option_of_another_scenario_is_refused(
    scenario: ScenarioName, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        scenario_of(config(scenario, **settings))
    assert str(refused.value) == message
