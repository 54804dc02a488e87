"""Enumerates every path: the reference for the other planners."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from sluice.batcher.planner.fronts.pareto import Costs, Indices, Times
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem, check_problem
from sluice.batcher.planner.registry import path_planner
from sluice.models.errors import ConfigError

MAX_PATHS = 50_000_000
BLOCK_PATHS = 1 << 18
"""Paths that are looked at together: all options of the last stages, one option each of those before."""


@path_planner("brute_force", f"the least cost, by trying up to {MAX_PATHS // 1_000_000} million paths")
def plan_brute_force(problem: Problem, count: int = 1) -> list[Path]:
    """The cheapest paths by enumeration (a `PathPlanner`); raises ConfigError for more than `MAX_PATHS` of them."""
    check_problem(problem)
    sizes = [len(stage.cost) for stage in problem.stages]
    if (paths := math.prod(sizes)) > MAX_PATHS:
        raise ConfigError(f"planning problem: {paths} paths, expected at most {MAX_PATHS} for brute force")
    split = len(sizes) - 1
    while split and math.prod(sizes[split - 1 :]) <= BLOCK_PATHS:
        split -= 1
    best: list[Path] = []
    for head in product(*(range(size) for size in sizes[:split])):
        latency_ns, cost = _block(problem.stages, head)
        limit = best[-1].cost if len(best) == count else np.inf
        fits = np.flatnonzero((latency_ns <= problem.budget_ns) & (cost <= limit))
        for path in _cheapest(fits, latency_ns, cost, count).tolist():
            tail = np.unravel_index(path, sizes[split:])
            best.append(Path((*head, *map(int, tail)), int(latency_ns[path]), float(cost[path])))
        best = sorted(best, key=lambda path: (path.cost, path.latency_ns, path.choices))[:count]
    return best


def _cheapest(fits: Indices, latency_ns: Times, cost: Costs, count: int) -> Indices:
    """The first `count` of the paths that fit, by cost, latency and order."""
    if len(fits) > count:
        fits = fits[cost[fits] <= np.partition(cost[fits], count - 1)[count - 1]]
    return fits[np.lexsort((latency_ns[fits], cost[fits]))[:count]]


def _block(stages: Sequence[StageProblem], head: Sequence[int]) -> tuple[Times, Costs]:
    """Latency and cost of all paths that begin with these choices, in the order of their choices."""
    free = len(stages) - len(head)
    ends: list[Times] = []
    cost: Costs = np.zeros((1,) * free)
    for index, stage in enumerate(stages):
        chosen = slice(head[index], head[index] + 1) if index < len(head) else slice(None)
        axes = [1] * free
        if index >= len(head):
            axes[index - len(head)] = -1
        begin_ns: Times = np.zeros((1,) * free, np.int64)
        for source in stage.sources:
            begin_ns = np.maximum(begin_ns, ends[source])
        ends.append(begin_ns + stage.latency_ns[chosen].reshape(axes) * stage.on_path)
        cost = cost + (stage.probability * stage.cost[chosen]).reshape(axes)
    latency_ns = ends[0]
    for end_ns in ends[1:]:
        latency_ns = np.maximum(latency_ns, end_ns)
    return np.broadcast_to(latency_ns, cost.shape).ravel(), cost.ravel()
