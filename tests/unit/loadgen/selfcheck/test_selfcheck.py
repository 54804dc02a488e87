import asyncio
import json

import pytest

from sluice.loadgen.records.statistics import Distribution
from sluice.loadgen.selfcheck.clock import Clock, measure_clock
from sluice.loadgen.selfcheck.probe import Ceiling, ClientProbe
from sluice.loadgen.selfcheck.report import selfcheck_json, selfcheck_text
from sluice.loadgen.selfcheck.selfcheck import ClientSpeed, SelfCheck, highest_kept

LATE = Distribution(0.03, 0.031, 0.04, 0.05, 0.06, 0.07, 0.09, 0.2)


def tried(rate: float, *reasons: str) -> ClientProbe:
    return ClientProbe(rate, 1000, LATE, 0.1, 25.0, 0.7, reasons)


def search(limit: float, probes: int = 1000) -> tuple[ClientProbe | None, ClientProbe | None, list[float]]:
    """Search with a client that keeps rates up to `limit` and has a ceiling of 80 000/s."""
    rates: list[float] = []

    async def try_rate(rate: float, number: int) -> ClientProbe:
        assert number == len(rates)
        rates.append(rate)
        return tried(rate) if rate <= limit else tried(rate, "late")

    kept, failed = asyncio.run(highest_kept(80_000, try_rate, lambda: len(rates) < probes))
    return kept, failed, rates


@pytest.mark.parametrize("limit", [150, 5000, 33_000, 70_000])
def test_the_highest_rate_kept_is_found_within_a_tenth(limit: float) -> None:
    kept, failed, rates = search(limit)
    assert kept is not None
    assert failed is not None
    assert kept.rate <= limit < failed.rate <= 1.1 * kept.rate
    assert len(rates) < 16


def test_a_client_that_keeps_up_with_its_closed_loop_has_no_failed_rate() -> None:
    kept, failed, _ = search(1e9)
    assert kept is not None
    assert failed is None
    assert 80_000 / 1.1 <= kept.rate <= 80_000


def test_a_client_that_keeps_nothing_is_not_tried_below_the_lowest_rate() -> None:
    kept, failed, rates = search(0)
    assert kept is None
    assert failed is not None
    assert failed.rate == rates[-1] == 100


def test_the_search_ends_with_its_time_but_makes_one_probe() -> None:
    assert search(33_000, probes=0)[2] == [40_000]
    assert search(33_000, probes=2)[2] == [40_000, 20_000]


def check(*speeds: ClientSpeed) -> SelfCheck:
    return SelfCheck(Clock("tsc", 10, 50), 2, speeds)


def test_the_safe_rate_is_four_fifths_of_the_highest_kept_in_two_digits() -> None:
    fit = check(ClientSpeed("http", Ceiling(80_000, 9.0), tried(34_290), tried(36_000, "late")))
    assert fit.is_fit
    assert selfcheck_text(fit).splitlines() == [
        "clock  tsc, steps of 10 ns, 50 ns a reading",
        "cores  2",
        "      kept/s  late p50 ms  late p99 ms  CPU us/query  closed loop/s (64)  CPU us/query",
        "http   34290        0.031        0.070          25.0               80000           9.0",
        "Result: safe up to 27000/s over http with one process on this machine as busy as it is now",
    ]
    assert json.loads(selfcheck_json(fit))["safe_rates"] == {"http": 27_000.0}


def test_a_machine_that_keeps_no_rate_is_not_fit() -> None:
    unfit = check(ClientSpeed("grpc", Ceiling(80_000, 9.0), None, tried(100, "too busy")))
    assert not unfit.is_fit
    assert selfcheck_text(unfit).splitlines()[-2:] == [
        "grpc: 100/s not kept: too busy",
        "Result: no rate that was tried was kept over grpc: runs on this machine measure the client",
    ]
    assert json.loads(selfcheck_json(unfit))["fit"] is False


def test_the_clock_goes_on_in_steps() -> None:
    clock = measure_clock()
    assert 0 < clock.step_ns < 1_000_000
    assert clock.source
