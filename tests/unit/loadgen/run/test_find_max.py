import itertools
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from sluice.loadgen.run.find_max import (
    MaxRate,
    Probe,
    ProbePlan,
    SearchSettings,
    find_max,
    queries_to_resolve,
    resolution,
    shortest_probe_s,
)
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from tests.unit.loadgen.results import result_of

Run = Callable[[ProbePlan], RunResult]


def target(capacity: float, client_limit: float = 1e9, queries: int = 500, errors: int = 0) -> Run:
    """A target that meets 10 ms up to `capacity` and whose client keeps up to `client_limit`."""

    def run(plan: ProbePlan) -> RunResult:
        config = RunConfig(target="http://t", model="m", rate=plan.rate, slo_ms=10, warmup_s=0, seed=plan.number)
        late_ms = 5 if plan.rate > client_limit else 0
        return result_of(config, 10 if plan.rate <= capacity else 11, queries, late_ms=late_ms, errors=errors)

    return run


def search(run: Run, **settings: float) -> tuple[MaxRate, list[ProbePlan]]:
    plans: list[ProbePlan] = []

    def probe(plan: ProbePlan) -> Probe:
        plans.append(plan)
        return Probe.of(run(plan), plan.confirms)

    found = find_max(probe, msgspec.convert({"start": 100.0} | settings, SearchSettings))
    return found, plans


def rates(plans: list[ProbePlan]) -> list[float]:
    return [plan.rate for plan in plans]


def test_doubles_then_bisects_on_the_logarithm_to_the_precision_and_confirms() -> None:
    found, plans = search(target(capacity=1000), precision=0.02)
    assert rates(plans)[:5] == [100, 200, 400, 800, 1600]
    assert plans[5].rate == pytest.approx(1131.371, abs=0.001)
    assert [plan.number for plan in plans] == list(range(13))
    assert found.rate is not None
    assert found.failed_rate is not None
    assert found.rate <= 1000 < found.failed_rate <= 1.02 * found.rate
    assert [(plan.rate, plan.confirms) for plan in plans[-3:]] == [
        (pytest.approx(found.failed_rate), False) if plans[-3].rate > 1000 else (found.rate, False),
        (found.rate, True),
        (found.rate, True),
    ]
    assert (found.confirmed, found.client_limited) == (True, False)


def test_halves_when_the_first_rate_is_too_high() -> None:
    found, plans = search(target(capacity=30), precision=0.1)
    assert rates(plans)[:3] == [100, 50, 25]
    assert found.rate is not None
    assert 30 / 1.1 <= found.rate <= 30


def test_a_rate_that_fails_on_a_fresh_seed_is_stepped_down_by_the_precision_until_two_seeds_pass() -> None:
    # Short runs pass up to 1000/s, and long ones only up to 960/s.
    def run(plan: ProbePlan) -> RunResult:
        return target(960 if plan.confirms else 1000)(plan)

    found, plans = search(run, precision=0.01)
    confirming = [plan.rate for plan in plans if plan.confirms]
    assert found.rate == confirming[-1] == confirming[-2] <= 960
    assert found.failed_rate == confirming[-3] == pytest.approx(found.rate * 1.01)
    steps = confirming[:-1]
    assert [high / low for high, low in itertools.pairwise(steps)] == pytest.approx([1.01] * (len(steps) - 1))
    assert found.confirmed


def test_one_of_two_confirmations_is_not_enough() -> None:
    failures = iter([False, True])  # the second confirmation fails once

    def run(plan: ProbePlan) -> RunResult:
        return target(1 if plan.confirms and next(failures, False) else 200)(plan)

    found, plans = search(run, precision=0.5)
    assert [round(plan.rate, 1) for plan in plans if plan.confirms] == [200, 200, 133.3, 133.3]
    assert (round(found.rate or 0, 1), found.failed_rate, found.confirmed) == (133.3, 200, True)


def test_a_search_without_probes_left_says_that_the_rate_is_not_confirmed() -> None:
    def run(plan: ProbePlan) -> RunResult:
        return target(1 if plan.confirms else 1000)(plan)

    found, plans = search(run, max_probes=14)
    assert len(plans) == 14
    assert not found.confirmed
    assert found.rate is not None
    assert found.failed_rate is not None
    assert found.rate < found.failed_rate


def test_the_number_of_probes_is_bounded_when_nothing_passes() -> None:
    found, plans = search(target(capacity=0), max_probes=5)
    assert rates(plans) == [100, 50, 25]
    assert (found.rate, found.confirmed) == (None, False)


def test_two_probes_are_kept_for_the_confirmation_when_everything_passes() -> None:
    found, plans = search(target(capacity=1e9), max_probes=4)
    assert rates(plans) == [100, 200, 200, 200]
    assert (found.rate, found.failed_rate, found.confirmed) == (200, None, True)


def test_a_run_that_lost_a_process_of_the_client_is_repeated_and_its_rate_not_called_failed() -> None:
    reason = "client process 2 of 2 ended with signal SIGKILL"

    def losing(plan: ProbePlan) -> RunResult:
        result = target(capacity=1000)(plan)
        return replace(result, lost=(reason,), invalid=[reason]) if plan.number == 1 else result

    found, plans = search(losing, precision=0.5)
    assert rates(plans)[:4] == [100, 200, 200, 400]
    assert found.rate == 800


def test_a_run_that_its_client_limited_is_repeated_once_and_then_not_taken_for_the_targets_limit() -> None:
    found, plans = search(target(capacity=1000, client_limit=300), precision=0.5)
    assert rates(plans) == [100, 200, 400, 400, pytest.approx(282.84, abs=0.01)] + [pytest.approx(282.84, abs=0.01)] * 2
    assert len({plan.number for plan in plans}) == len(plans)
    assert (found.failed_rate, found.client_limited, found.confirmed) == (400, True, True)


def test_a_client_that_was_late_once_does_not_end_the_search() -> None:
    def run(plan: ProbePlan) -> RunResult:
        return target(1000, client_limit=1 if plan.number == 1 else 1e9)(plan)

    found, plans = search(run, precision=0.5)
    assert rates(plans)[:4] == [100, 200, 200, 400]
    assert found.rate is not None
    assert found.rate > 600
    assert not found.client_limited


def test_a_client_that_is_late_without_load_ends_the_search() -> None:
    found, plans = search(lambda plan: replace(target(1000, client_limit=1)(plan), baseline_lateness_ms=3.0))
    assert rates(plans) == [100, 100]
    assert (found.rate, found.client_limited) == (None, True)


def test_an_interrupted_probe_ends_the_search_and_counts_for_nothing() -> None:
    found, plans = search(lambda plan: replace(target(1000)(plan), interrupted=plan.rate > 150))
    assert rates(plans) == [100, 200]
    assert (found.rate, found.failed_rate, found.confirmed) == (100, None, False)


def test_an_interrupted_confirmation_leaves_the_rate_unconfirmed() -> None:
    found, plans = search(lambda plan: replace(target(150)(plan), interrupted=plan.confirms), precision=0.5)
    assert [plan.confirms for plan in plans].count(True) == 1
    assert found.rate == pytest.approx(141.4, abs=0.1)
    assert not found.confirmed


def test_a_rate_that_is_not_confirmed_by_early_stopping_does_not_pass() -> None:
    run = target(capacity=1000, errors=4)
    probe = Probe.of(run(ProbePlan(0, 100.0, False)), confirms=False)
    assert probe.metrics.attainment == 0.992
    assert not probe.passed
    found, _ = search(run, max_probes=5)
    assert (found.rate, found.failed_rate) == (None, 25)


def test_a_search_ends_where_runs_are_too_short_to_confirm_a_rate() -> None:
    found, plans = search(target(capacity=1000, queries=458))
    assert rates(plans) == [100]
    assert (found.rate, found.too_short) == (None, True)


def test_a_short_probe_above_a_rate_that_passed_does_not_end_the_search() -> None:
    def run(plan: ProbePlan) -> RunResult:
        return target(1e9, queries=458 if plan.rate > 150 else 500)(plan)

    found, plans = search(run, max_probes=6)
    assert len(plans) == 6
    assert not found.too_short
    assert found.rate is not None


def test_a_target_without_limit_is_tried_up_to_the_highest_rate_only() -> None:
    found, plans = search(target(capacity=1e9), max_rate=500.0)
    assert rates(plans) == [100, 200, 400, 500, 500, 500]
    assert (found.rate, found.failed_rate, found.confirmed) == (500, None, True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": 0.0}, "--precision: expected a number between 0 and 100 %"),
        ({"precision": 1.0}, "--precision: expected a number between 0 and 100 %"),
        ({"precision": float("nan")}, "--precision: expected a number between 0 and 100 %"),
        ({"max_probes": 0}, "--max-probes: expected at least 1, got 0"),
        ({"start": 600.0, "max_rate": 500.0}, "--start: expected at most --max-rate"),
        ({"start": 0.0}, "--start: expected above 0"),
        ({"min_duration_s": 31.0}, r"--min-duration: expected at most --duration \(30 s\), got 31 s"),
    ],
)
def test_a_search_that_cannot_end_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search(target(1), **settings)


def test_the_shortest_probe_is_as_long_as_an_overload_by_the_precision_takes_to_show() -> None:
    # 2 % too much work makes a queue of 0.1 s in 5 s.
    assert shortest_probe_s(warmup_s=1.0, slo_ms=100, precision=0.02) == pytest.approx(6.0)
    assert shortest_probe_s(warmup_s=1.0, slo_ms=None, precision=0.02) == 1.0


def test_the_arrivals_of_a_run_vary_by_less_than_the_precision_where_it_has_enough_queries() -> None:
    # The rate of n Poisson arrivals has a relative deviation of 1/sqrt(n), of which 2.326 are exceeded once in 100.
    assert resolution(10_000) == pytest.approx(0.02326, abs=0.00001)
    assert [queries_to_resolve(precision) for precision in (0.02, 0.01, 0.0001)] == [13_530, 54_119, 1_000_000]
    assert resolution(queries_to_resolve(0.05)) <= 0.05


def test_a_probe_is_as_long_as_its_queries_take_and_a_day_at_most() -> None:
    settings = SearchSettings(duration_s=30.0, queries=6000)
    assert [settings.longest_s(rate) for rate in (1000.0, 100.0, 0.01)] == [30.0, 60.0, 86_400.0]
