"""Medians, spread and pace of batches, from literal times."""

import numpy as np
import pytest

from sluice.loadgen.validation.server_activity import ObservedBatch
from sluice.loadgen.validation.service_times import ServiceTimeFit

SHUFFLED = np.random.default_rng(0).permutation(201)


def batch(rows: int, took_ms: float) -> ObservedBatch:
    return ObservedBatch("wide:1", rows, 0, 0, round(took_ms * 1e6), 0, None, False, 0)


def test_every_size_has_its_own_median() -> None:
    runs = [[batch(1, 1.0), batch(3, 1.4), batch(16, 2.6)] * 10, [batch(16, 2.6)] * 10]
    assert ServiceTimeFit(runs).quantiles_ms() == {1: (1.0,) * 21, 3: (1.4,) * 21, 16: (2.6,) * 21}


def test_times_of_a_size_spread_as_those_of_sizes_like_it() -> None:
    batches = [batch(2, took_ms) for took_ms in np.linspace(1.0, 3.0, 201)[SHUFFLED]]
    batches += [batch(3, 4.0)] * 201
    quantiles = ServiceTimeFit([batches]).quantiles_ms()
    assert quantiles[2][10] == pytest.approx(2.0)
    assert quantiles[3][10] == pytest.approx(4.0)
    assert quantiles[3][0] == pytest.approx(2 * quantiles[2][0])
    assert quantiles[3][-1] == pytest.approx(6.0, rel=0.15)


def test_a_size_that_hardly_ran_has_no_times_of_its_own() -> None:
    assert ServiceTimeFit([[batch(1, 1.0)] * 5 + [batch(2, 9.0)] * 4]).quantiles_ms().keys() == {1}


def test_a_slow_spell_is_pace_and_not_spread() -> None:
    run = [batch(4, 2.0)] * 128 + [batch(4, 3.0)] * 64
    service = ServiceTimeFit([run])
    assert service.quantiles_ms()[4] == (2.0,) * 21
    assert service.pace([run]) == ((1.0,) * 64, (1.0,) * 64, (1.5,) * 64)


def test_a_single_slow_batch_is_spread_and_not_pace() -> None:
    run = ([batch(4, 2.0)] * 19 + [batch(4, 8.0)]) * 16
    service = ServiceTimeFit([run])
    assert set(service.pace([run])) == {(1.0,) * 64}
    assert service.quantiles_ms()[4][0] == 2.0
    assert service.quantiles_ms()[4][-1] == pytest.approx(14.0, rel=0.1)


def test_the_pace_is_that_of_the_runs_that_are_asked_for() -> None:
    service = ServiceTimeFit([[batch(4, 2.0)] * 100])
    assert service.pace([[batch(4, 2.5)] * 64, [batch(7, 1.0)] * 64]) == ((1.25,) * 64,)


def test_pieces_of_the_pace_are_from_one_run_each_and_bounded() -> None:
    short, long = [batch(1, 1.0)] * 63, [batch(1, 1.0)] * 64 * 300
    service = ServiceTimeFit([long])
    assert 40 <= len(service.pace([long])) <= 64
    assert service.pace([short, [*short, batch(1, 1.0)]]) == ((1.0,) * 63, (1.0,) * 64)
    assert service.pace([[*short, *short]]) == ((1.0,) * 64,)
    assert service.pace([[]]) == ()
