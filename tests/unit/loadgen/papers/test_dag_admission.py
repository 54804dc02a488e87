"""Requests to DAGs: the product admits more than others, and hardly any in vain."""

import pytest

from sluice.loadgen.papers.dag_admission import MAX_COST, SCHEDULERS, SLUICE, arrivals, goodput, play


@pytest.mark.parametrize("objective_ms", [20, 80])
def test_sluice_has_the_most_requests_within_either_objective(objective_ms: int) -> None:
    requests = arrivals(1, objective_ms)
    results = {name: goodput(play(name, requests, 1)) for name in SCHEDULERS}
    ours = results.pop(SLUICE)
    assert all(ours.latency > other.latency and ours.cost > other.cost for other in results.values())
    assert ours.missed == 0


def test_no_admitted_request_costs_more_than_it_may() -> None:
    done = play(SLUICE, arrivals(2, 40), 2)
    assert len(done) > 800
    assert max(each.cost for each in done) <= MAX_COST
