from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from sluice.loadgen.reports.text import max_rate_text, probe_text
from sluice.loadgen.run.find_max import MaxRate, Probe, find_max
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from tests.unit.loadgen.results import result_of


def target(
    capacity: float, client_limit: float = 1e9, queries: int = 500, errors: int = 0
) -> tuple[list[float], list[int], Callable[[float, int], RunResult]]:
    """A target that meets 10 ms up to `capacity` and whose client keeps up to `client_limit`."""
    rates: list[float] = []
    numbers: list[int] = []

    def run(rate: float, number: int) -> RunResult:
        rates.append(rate)
        numbers.append(number)
        config = RunConfig(target="http://t", model="m", rate=rate, slo_ms=10, warmup_s=0, seed=number)
        late_ms = 5 if rate > client_limit else 0
        return result_of(config, 10 if rate <= capacity else 11, queries, late_ms=late_ms, errors=errors)

    return rates, numbers, run


def test_doubles_then_bisects_on_the_logarithm_to_the_precision() -> None:
    rates, numbers, run = target(capacity=1000)
    peak = find_max(run, start=100, precision=0.02)
    assert rates[:5] == [100, 200, 400, 800, 1600]
    assert rates[5] == pytest.approx(1131.371, abs=0.001)
    assert numbers == list(range(len(rates)))
    assert peak.rate is not None
    assert peak.failed_rate is not None
    assert peak.rate <= 1000 < peak.failed_rate <= 1.02 * peak.rate
    assert len(rates) == 11
    assert not peak.client_limited


def test_halves_when_the_first_rate_is_too_high() -> None:
    rates, _, run = target(capacity=30)
    peak = find_max(run, start=100, precision=0.1)
    assert rates[:3] == [100, 50, 25]
    assert peak.rate is not None
    assert 30 / 1.1 <= peak.rate <= 30


def test_the_number_of_probes_is_bounded_when_nothing_passes() -> None:
    rates, _, run = target(capacity=0)
    peak = find_max(run, start=100, max_probes=5)
    assert rates == [100, 50, 25, 12.5, 6.25]
    assert peak.rate is None
    assert max_rate_text(peak) == "Result: no rate met the objective in 5 probes\n"


def test_the_number_of_probes_is_bounded_when_everything_passes() -> None:
    rates, _, run = target(capacity=1e9)
    peak = find_max(run, start=100, max_probes=4)
    assert rates == [100, 200, 400, 800]
    assert max_rate_text(peak) == (
        "Result: 800.0/s within the objective, no rate failed: the real maximum is higher (4 probes)\n"
    )


def test_a_limit_of_the_client_is_not_taken_for_the_targets() -> None:
    _, _, run = target(capacity=1000, client_limit=300)
    peak = find_max(run, start=100, precision=0.5)
    assert peak.client_limited
    assert max_rate_text(peak) == (
        "Result: 282.8/s within the objective; 400.0/s exceeded the client's capacity, "
        "the real maximum may be higher (4 probes)\n"
    )


def test_an_interrupted_probe_ends_the_search_and_counts_for_nothing() -> None:
    rates, _, run = target(capacity=1000)
    peak = find_max(lambda rate, number: replace(run(rate, number), interrupted=rate > 150), start=100)
    assert rates == [100, 200]
    assert (peak.rate, peak.failed_rate) == (100, None)


def test_probes_do_not_keep_their_rows() -> None:
    _, _, run = target(capacity=1000)
    peak = find_max(run, start=100, max_probes=1)
    assert len(peak.probes[0].result.record) == 0
    assert peak.probes[0].result.metrics.queries == 500


def test_the_line_of_a_probe() -> None:
    _, _, run = target(capacity=150, client_limit=300)
    limit = "limited by the client: it was 5.00 ms late or more with 1 % of the queries, 1 ms is allowed; "
    assert [probe_text(Probe(rate, run(rate, 7))) for rate in (100.0, 200.0, 400.0)] == [
        "       100.0/s  met by 100.000 %       p99 10.000 ms  seed 7  pass\n",
        "       200.0/s  met by   0.000 %       p99 11.000 ms  seed 7  missed\n",
        "       400.0/s  met by   0.000 %       p99 11.000 ms  seed 7  "
        f"{limit}try a lower --rate or a core of its own for the client\n",
    ]


def test_the_line_of_a_missed_probe_says_how_many_queries_waited() -> None:
    _, _, run = target(capacity=10)
    result = run(100.0, 0)
    waiting = replace(result, metrics=msgspec.structs.replace(result.metrics, waited=70))
    assert probe_text(Probe(100.0, waiting)).endswith("missed; 70 queries waited for a connection\n")


def test_a_rate_that_is_not_confirmed_does_not_pass() -> None:
    _, _, run = target(capacity=1000, errors=4)
    probe = Probe(100.0, run(100.0, 0))
    assert probe.result.metrics.attainment == 0.992
    assert not probe.passed
    assert probe_text(probe).endswith("not confirmed by early stopping: needs 1157 queries\n")
    peak = find_max(run, start=100, max_probes=3)
    assert (peak.rate, peak.failed_rate) == (None, 25)


def test_a_search_ends_where_runs_are_too_short_to_confirm_a_rate() -> None:
    rates, _, run = target(capacity=1000, queries=458)
    peak = find_max(run, start=100)
    assert rates == [100]
    assert (peak.rate, peak.too_short) == (None, True)
    too_short = "too short: 458 queries after the warm-up; a claim about 99 % needs 459\n"
    assert probe_text(peak.probes[0]).endswith(too_short)
    assert max_rate_text(peak) == (
        "Result: no rate met the objective in 1 probes; at 100.0/s and below runs have too few queries to confirm it; "
        "try a longer --duration or a higher --start\n"
    )


def test_a_short_probe_above_a_rate_that_passed_does_not_end_the_search() -> None:
    _, _, long = target(capacity=1e9)
    _, _, short = target(capacity=1e9, queries=458)
    peak = find_max(lambda rate, number: (short if rate > 150 else long)(rate, number), start=100, max_probes=4)
    assert len(peak.probes) == 4
    assert not peak.too_short
    assert peak.rate is not None


def test_notes_stand_before_the_highest_rate() -> None:
    _, _, run = target(capacity=1e9)
    peak = find_max(lambda rate, number: replace(run(rate, number), notes=("no host",)), start=100, max_probes=2)
    assert max_rate_text(peak).startswith("Note: no host\nResult: 200.0/s within the objective")


def test_a_bracket_that_failed() -> None:
    assert max_rate_text(MaxRate(10.0, 11.0, ())) == "Result: 10.0/s within the objective; 11.0/s failed (0 probes)\n"


@pytest.mark.parametrize("precision", [0, 1, float("nan")])
def test_a_precision_that_cannot_be_reached_is_refused(precision: float) -> None:
    with pytest.raises(ConfigError, match="--precision: expected a number between 0 and 100 %"):
        find_max(target(1)[2], 100, precision)


def test_a_search_needs_a_probe() -> None:
    with pytest.raises(ConfigError, match="--max-probes: expected at least 1, got 0"):
        find_max(target(1)[2], 100, max_probes=0)


def test_a_target_without_limit_is_tried_up_to_the_highest_rate_only() -> None:
    rates, _, run = target(capacity=1e9)
    peak = find_max(run, start=100, max_rate=500)
    assert rates == [100, 200, 400, 500]
    assert (peak.rate, peak.failed_rate) == (500, None)
    with pytest.raises(ConfigError, match="--start: expected at most --max-rate"):
        find_max(run, start=600, max_rate=500)
