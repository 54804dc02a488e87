"""The exact planner: Pareto fronts, made backwards over the pipeline, give the cost of all that follows within a time.

The setting is that of ESG (HPDC 2024): batch and share of each stage, jointly, under one objective. ESG searches; the
fronts give the answer directly. They are the cost-to-go of dynamic programming, and the algorithm is ours.
"""

from functools import cached_property

from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.planner.fronts.assembly import ResidualRegion, assemble, following
from sluice.batcher.planner.fronts.k_best import k_best
from sluice.batcher.planner.fronts.pareto import DONE, Steps, series
from sluice.batcher.planner.fronts.region import Bounds, Leaf, ParallelRegion, SeriesRegion, StageRegion
from sluice.batcher.planner.fronts.slack import spend_slack
from sluice.batcher.planner.problem.graph import decompose, is_series_parallel
from sluice.batcher.planner.problem.problem import Path, Problem, check_problem, path_of
from sluice.batcher.planner.registry import path_planner

_LEAST_SHARE = 1e-9
"""A smaller share of rows is as good as none: costs are not divided by it."""

MAX_POINTS = 1000
"""Points of a front, above which time is cut into a grid of half as many cells (see `pareto.thinned`)."""


class ExactPlanner:
    """The fronts of one problem, made once for all questions about it.

    Exact for series-parallel pipelines as long as no front has more than `max_points` points, and for others within the
    limits that `assembly.ResidualRegion` and `assembly.assemble` state; beyond, plans still fit the budget, but may
    cost more than the least. Raises ConfigError if a stage has no option, or figures that are out of range.
    """

    def __init__(self, problem: Problem, max_points: int = MAX_POINTS) -> None:
        check_problem(problem)
        self._problem = problem
        self._quickest = [int(stage.latency_ns.argmin()) for stage in problem.stages]
        self._quickest_ns = path_of(problem, self._quickest).latency_ns
        self._bounds = Bounds(max(problem.budget_ns, self._quickest_ns), max_points)
        self._shape = decompose(tuple(stage.sources for stage in problem.stages))

    @cached_property
    def _root(self) -> StageRegion:
        stages = self._problem.stages
        leaves = [Leaf(index, stage, self._bounds) for index, stage in enumerate(stages)]
        return assemble(self._shape, leaves, self._bounds)

    def paths(self, count: int = 1) -> list[Path]:
        """The (up to) `count` cheapest paths within the budget, cheapest first, of equal cost the quicker first."""
        budget_ns = self._problem.budget_ns
        if budget_ns < self._quickest_ns:
            return []
        found: list[tuple[int, ...]] = []
        if self._root.quickest_ns <= budget_ns:
            found.append(tuple(self._choose(budget_ns)))
            if count > 1:
                found.extend(k_best(self._root, len(self._problem.stages), budget_ns, count, self._bounds))
        if not is_series_parallel(self._shape):  # a simplified region may leave time unused
            found += [spend_slack(self._problem, choices) for choices in (tuple(self._quickest), *found)]
        paths = [path_of(self._problem, choices) for choices in dict.fromkeys(found)]
        return sorted(paths, key=lambda path: (path.cost, path.latency_ns, path.choices))[:count]

    def quickest(self) -> Path:
        """The path of the least latency, the cheapest of those, whatever the budget."""
        if self._quickest_ns < self._root.quickest_ns:  # only where a region had to be simplified
            return path_of(self._problem, self._quickest)
        return path_of(self._problem, self._choose(self._quickest_ns))

    @property
    def front(self) -> CostToGo:
        """The least cost of the whole pipeline, against the time for it; up to the budget, but the quickest always."""
        latency_ns, cost = self._root.front
        return CostToGo(tuple(latency_ns.tolist()), tuple(cost.tolist()))

    def rests(self) -> tuple[CostToGo, ...]:
        """For each stage the least cost of all that comes after it, against the time that is left when it ends.

        Only its descendants are counted: not the stages beside it, even where a later stage waits for both. So a stage
        that joins branches is counted in each of them. Costs are weighted by probability, and stages off the path take
        no time. A front ends at the budget, but always has its quickest point.
        """
        rests = [DONE] * len(self._problem.stages)
        leaves = self._walk(self._root, DONE)
        for leaf, rest in leaves:
            rests[leaf.index] = rest
        return tuple(CostToGo(tuple(rest.latency_ns.tolist()), tuple(rest.cost.tolist())) for rest in rests)

    def _walk(self, region: StageRegion, after: Steps) -> list[tuple[Leaf, Steps]]:
        """Each stage of a region, with what comes after the stage when `after` comes after the region."""
        match region:
            case Leaf():
                return [(region, after)]
            case SeriesRegion():
                afters = [self._both(rest, after) for rest in region.rests]
            case ParallelRegion():
                afters = [after] * len(region.parts)
            case ResidualRegion():
                afters = [self._both(following(region, part, self._bounds), after) for part in range(len(region.parts))]
            case _:
                raise AssertionError(f"a pipeline has no region of type {type(region).__name__}")
        return [found for part, rest in zip(region.parts, afters, strict=True) for found in self._walk(part, rest)]

    def _both(self, rest: Steps, after: Steps) -> Steps:
        return self._bounds.thinned(series(rest, after, self._bounds.horizon_ns))

    def _choose(self, within_ns: int) -> list[int]:
        choices = [0] * len(self._problem.stages)
        self._root.choose(within_ns, choices)
        return choices


def from_here(rest: CostToGo, probability: float) -> CostToGo:
    """The cost that is left for a row that has reached a stage, which is above the average over all rows."""
    share = max(probability, _LEAST_SHARE)
    return CostToGo(rest.within_ns, tuple(cost / share for cost in rest.cost))


@path_planner("exact", "the least cost")
def plan_exact(problem: Problem, count: int = 1) -> list[Path]:
    """The cheapest paths (a `PathPlanner`), within the limits of `ExactPlanner`.

    In a region that is not series-parallel the second best and later paths differ only by combinations on its front.
    """
    return ExactPlanner(problem).paths(count)
