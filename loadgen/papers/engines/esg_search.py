"""ESG's search in ESG's cluster: the paths that its blades leave, and the time that they take as published."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from sluice.batcher.planner.baselines.slo_split import subproblem
from sluice.batcher.planner.exact import ExactPlanner
from sluice.batcher.planner.problem.problem import Problem, StageProblem
from sluice.loadgen.papers.engines.esg_cluster import (
    CORE_PRICE,
    SIZES,
    SLICE_PRICE,
    EsgCell,
    objective_ns,
    partitions,
    table_of,
)
from sluice.loadgen.papers.nodes_and_links import APPLICATIONS
from sluice.loadgen.papers.search_space import BEST, paths_left
from sluice.models.units import NS_PER_S

PATH_US = 7258e3 / 256**3
"""The time that brute force takes for a path, by the figures of the paper."""
OPTIONS = len(set(partitions().values())) * len(SIZES)
"""The configurations of a function."""
BRUTE_FORCE_US = OPTIONS**3 * PATH_US
"""Brute force over three stages, at the published time a path."""


def search_us(cell: EsgCell) -> float:
    """The mean time of a search of the first three stages of the applications; the load does not change it."""
    return PATH_US * fmean(_paths(cell, name) for name in APPLICATIONS)


def planning_table(cells: Sequence[EsgCell]) -> str:
    """The time of a search by cell, beside brute force."""
    lines = [
        f"Searches of three stages with {OPTIONS} configurations each, at the published time a path (µs):\n",
        "| cell | esg | brute force |",
        "|---|---|---|",
    ]
    lines += [f"| {cell.name} | {search_us(cell):.0f} | {BRUTE_FORCE_US:.0f} |" for cell in cells]
    return "\n".join(lines) + "\n"


def _paths(cell: EsgCell, application: str) -> int:
    kinds = sorted(set(partitions().values()))
    stages = []
    for index, name in enumerate(APPLICATIONS[application]):
        took_ns = np.array([table_of(name, *kind).latency_ns(size) for kind in kinds for size in SIZES])
        prices = np.array([slices * SLICE_PRICE + cores * CORE_PRICE for slices, cores in kinds for _ in SIZES])
        cost = prices * took_ns / NS_PER_S / np.array([size for _ in kinds for size in SIZES])
        stages.append(StageProblem(name, took_ns, cost, sources=(index - 1,) if index else ()))
    whole = Problem(tuple(stages), objective_ns(application, cell))
    first = range(min(3, len(stages)))
    least_ns = [int(stage.latency_ns.min()) for stage in stages]
    budget_ns = whole.budget_ns * sum(least_ns[:3]) // sum(least_ns)
    part = subproblem(whole, first, budget_ns)
    best = ExactPlanner(part).paths(BEST)
    return paths_left(part, best[-1].cost) if best else 0
