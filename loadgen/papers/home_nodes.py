"""Home nodes: requests for a model go to few nodes, where the model is in memory.

Apache OpenWhisk's load balancer tries nodes for an action from its home on, the hash of its name modulo the number of
nodes, in steps of a number that is coprime to it. Our placement of first stages takes nodes in this order.
"""

import random
from collections import OrderedDict
from statistics import fmean

from sluice.batcher.fleet.home_order import home_order, name_hash
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, gated

MODELS, NODES = 20, 10
HELD = 2
"""Models that a node holds: the least recently used one makes room."""
REQUESTS, QUICK_REQUESTS = 20_000, 2_000
EXAMPLE = (3, 6, 9, 2, 5, 8, 1, 4, 7, 0)


def hit_rate(seed: int, requests: int, *, is_home: bool) -> float:
    """The part of the requests whose model is in memory where they go: to the home node, or to any node."""
    chance = random.Random(seed)
    names = [f"model-{chance.getrandbits(32):x}" for _ in range(MODELS)]
    homes = {name: home_order(NODES, name_hash(name))[0] for name in names}
    memories: list[OrderedDict[str, None]] = [OrderedDict() for _ in range(NODES)]
    hits = 0
    for _ in range(requests):
        name = chance.choice(names)
        memory = memories[homes[name] if is_home else chance.randrange(NODES)]
        hits += name in memory
        memory[name] = None
        memory.move_to_end(name)
        if len(memory) > HELD:
            memory.popitem(last=False)
    return hits / requests


def findings(effort: Effort) -> tuple[ExperimentFinding, ...]:
    """The example, and paired runs with each seed."""
    order = tuple(home_order(10, 13))
    requests = QUICK_REQUESTS if effort.quick else REQUESTS
    seeds = range(1, effort.seeds + 1)
    home, anywhere = (fmean(hit_rate(seed, requests, is_home=is_home) for seed in seeds) for is_home in (True, False))
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
            f"{home:.1%} at home, {anywhere:.1%} on any node",
            gate="at least twice as many at home",
            is_met=home >= 2 * anywhere,
        ),
    )
