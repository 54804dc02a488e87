"""Home nodes: requests for a model go to few nodes, where the model is in memory.

Apache OpenWhisk's load balancer tries nodes for an action from its home on, the hash of its name modulo the number of
nodes, in steps of a number that is coprime to it. The instance policy `home_hash` tries partitions in this order. It is
played beside policies that do not look at what is in memory, by the scheduler, which loads and evicts on demand. Models
come by chance, so these policies find one in memory as often as a node that is drawn would have it.
"""

import random
from collections.abc import Iterator
from statistics import fmean

from sluice.batcher.fleet.home_order import home_order
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule
from sluice.loadgen.papers.engines.model_pool import PooledModel, PoolRun, play_pool
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, gated

MODELS, NODES = 20, 10
HELD = 2
"""Models that a node holds."""
LOAD_STEPS, RUN_STEPS = 5, 10
LOAD = 0.2
"""The share of the nodes' time that the runs take; loads come to that."""
REQUESTS, QUICK_REQUESTS = 4_000, 500
EXAMPLE = (3, 6, 9, 2, 5, 8, 1, 4, 7, 0)
AT_HOME, ANYWHERE = InstanceRule.HOME_HASH, (InstanceRule.ROUND_ROBIN, InstanceRule.BALANCE)


def arrivals(seed: int, names: list[str], requests: int) -> Iterator[tuple[float, str]]:
    """Poisson arrivals, each for any of the models: (step, model)."""
    chance, at = random.Random(f"arrivals {seed}"), 0.0
    for _ in range(requests):
        at += chance.expovariate(LOAD * NODES / RUN_STEPS)
        yield at, chance.choice(names)


def play(rule: InstanceRule, seed: int, requests: int) -> PoolRun:
    """One run, from empty nodes on."""
    chance = random.Random(seed)
    names = [f"model-{chance.getrandbits(32):x}" for _ in range(MODELS)]
    models = [PooledModel(name, LOAD_STEPS, RUN_STEPS) for name in names]
    return play_pool(InstanceConfig(rule), models, NODES, list(arrivals(seed, names, requests)), held=HELD)


def findings(effort: Effort) -> tuple[ExperimentFinding, ...]:
    """The example, and paired runs with each seed."""
    order = tuple(home_order(10, 13))
    requests = QUICK_REQUESTS if effort.quick else REQUESTS
    seeds = range(1, (2 if effort.quick else effort.seeds) + 1)
    shares = {
        rule: [(run := play(rule, seed, requests)).hits / len(run.starts) for seed in seeds]
        for rule in (AT_HOME, *ANYWHERE)
    }
    anywhere = [max(*each, HELD / MODELS) for each in zip(*(shares[rule] for rule in ANYWHERE), strict=True)]
    return (
        gated(
            "order of 10 nodes for the hash 13",
            ", ".join(map(str, order)),
            published=", ".join(map(str, EXAMPLE)),
            gate="the same",
            is_met=order == EXAMPLE,
        ),
        gated(
            f"requests whose model is in memory, {MODELS} models on {NODES} nodes that hold {HELD} each",
            ", ".join(f"{fmean(each):.1%} with {rule}" for rule, each in shares.items()),
            gate=f"with {AT_HOME} at least twice as many, also by those that a node holds by chance, with each seed",
            is_met=all(home >= 2 * other for home, other in zip(shares[AT_HOME], anywhere, strict=True)),
        ),
    )
