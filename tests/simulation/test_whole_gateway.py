"""A whole gateway keeps its promises on a simulated machine, whatever fails there.

Each request has one outcome, within a bounded time, and an answer is right; nothing is left when the gateway ends; and
everything is served again once the faults are over. `make simulate MACHINE=gateway SEEDS=1000` tries other seeds.
"""

import pytest

from scripts.simulate import kept_seeds
from tests.support.gateway.simulation.whole_gateway import simulate

SEEDS = range(1, 31)


@pytest.mark.parametrize("seed", [*SEEDS, *kept_seeds("gateway")])
def test_a_gateway_keeps_its_promises_under_faults(seed: int) -> None:
    run = simulate(seed)
    assert run.problems == (), run.faults


@pytest.mark.parametrize("seed", [3, 12])
def test_a_seed_leads_to_the_same_decisions_and_outcomes_again(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert first.outcomes == second.outcomes
    assert first.journal == second.journal
    assert len(first.outcomes) >= 60
    assert first.journal.count(b"\n") > 100
