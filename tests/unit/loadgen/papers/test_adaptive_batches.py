"""Clipper's batch policies on a partition that is always busy; figures by 0.84 ms and 0.032 ms a row."""

import pytest

from sluice.batcher.policies.aimd import AimdSettings
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.quantile import QuantileSettings
from sluice.loadgen.papers.adaptive_batches import (
    CLIENTS,
    LARGEST,
    TABLE,
    gateway,
    highest_rate,
    moderate,
    most_gain_of_delay,
    per_busy_second,
)
from sluice.loadgen.papers.engines.busy_clients import BusyClients
from sluice.models.units import NS_PER_MS, NS_PER_S


def test_the_times_are_those_of_the_setting() -> None:
    assert TABLE.latency_ns(1) == 872_000
    assert LARGEST == 598
    assert TABLE.latency_ns(LARGEST) <= 20 * NS_PER_MS < TABLE.latency_ns(LARGEST + 1)


def test_busy_clients_ask_again_until_their_time_is_over_and_keep_batches_full() -> None:
    clients = BusyClients(("m:1",), CLIENTS, 600 * NS_PER_MS)
    played = gateway(QuantileSettings(), clients).play(clients)
    assert all(each.outcome.answered for each in played.requests)
    assert sum(each.rows for each in clients.batches) == len(played.requests)
    after = [each.rows for each in clients.batches if 400 * NS_PER_MS <= each.over_ns < 600 * NS_PER_MS]
    assert min(after) > 500
    assert max(after) <= LARGEST


def test_single_requests_reach_one_over_their_time() -> None:
    clients = BusyClients(("m:1",), 4, 100 * NS_PER_MS)
    gateway(NoBatchingSettings(), clients).play(clients)
    assert per_busy_second(clients.batches) == pytest.approx(1146.8, abs=0.1)


@pytest.mark.parametrize("rate", [1147, 1500])
def test_a_delay_makes_fuller_batches_at_a_moderate_rate_and_gains_no_more_than_it_can(rate: int) -> None:
    at_once, delayed = (moderate(AimdSettings(max_delay_ms=delay), rate, NS_PER_S) for delay in (0, 2))
    assert most_gain_of_delay() == pytest.approx(3.04, abs=0.005)
    assert 2 * at_once < delayed < most_gain_of_delay() * at_once


def test_the_highest_rate_is_the_last_before_requests_are_late_or_refused() -> None:
    assert highest_rate(NoBatchingSettings(), (900, 1000, 1400), NS_PER_S, (1,)) == 1000
