"""ESG_1Q: a search over partial paths that two bounds prune, and groups of three stages for longer pipelines.

Source: "ESG: Pipeline-Conscious Efficient Scheduling of DNN Workflows on Serverless Platforms with Shareable GPUs"
(HPDC'24), as its slides describe it under "ESG_1Q Algorithm" (extension stage by stage over options sorted by cost,
dual-bladed pruning, the best few paths) and "Dominator-based SLO Distribution for Scalability". The paper's code is not
public; the exact bounds (tLow, rscLow, rscFastest) and K = 5 are recalled, not checked against its text. Ours: whole
arrays of partial paths are extended at once, inside a group the latency is that of the longest path instead of a sum,
the number of kept partial paths is bounded, and options are any the problem lists. A group's unused time is not handed
on: the scheduler plans again at every stage.
"""

from functools import partial
from itertools import product

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.batcher.planner.baselines.slo_split import normalised_lengths, split_groups, subproblem
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem, check_problem, path_of
from sluice.batcher.planner.registry import path_planner

GROUP_STAGES = 3
"""Stages that are searched together."""
_PATHS_PER_MS = 100  # of a group of 256 options a stage
_BEST_PATHS = 5  # K: paths that the cost blade keeps, and that a group passes on
_EXTENDED_AT_ONCE = 1 << 16  # bounds the arrays; a first, small block also finds a bound that prunes the others
_ROUNDING = 1e-12  # sums of the same costs in another order must not prune

Times = npt.NDArray[np.int64]
Costs = npt.NDArray[np.float64]


class EsgSettings(msgspec.Struct, frozen=True):
    """`kept_paths` are the partial paths that go on to the next stage, cheapest first.

    The default is all that there can be after two stages of 256 options.
    """

    kept_paths: int = 1 << 16


@path_planner("esg", "the least cost in groups of up to three stages", EsgSettings, work={"kept_paths": _PATHS_PER_MS})
def esg(settings: EsgSettings) -> PathPlanner:
    """The planner with its settings."""
    return partial(plan_esg, kept_paths=settings.kept_paths)


def plan_esg(problem: Problem, count: int = 1, *, kept_paths: int = EsgSettings().kept_paths) -> list[Path]:
    """Search each group of stages by itself and put their paths together.

    With up to three stages (and up to 256 options each) there is one group and the answer is exact. With more, a
    budget that could be met may be found infeasible. ConfigError where the figures make no sense.
    """
    check_problem(problem)
    keep = max(count, _BEST_PATHS)
    lengths = normalised_lengths(problem)
    found: list[tuple[float, dict[int, int]]] = [(0.0, {})]
    for group in split_groups(problem, lengths, GROUP_STAGES):
        paths = search_group(subproblem(problem, group.stages, group.budget_ns), keep, kept_paths)
        longer = [
            (cost + path.cost, choices | dict(zip(group.stages, path.choices, strict=True)))
            for (cost, choices), path in product(found, paths)
        ]
        found = sorted(longer, key=lambda entry: entry[0])[:keep]
    paths = [path_of(problem, [choices[index] for index in range(len(problem.stages))]) for _, choices in found]
    return sorted(paths, key=lambda path: (path.cost, path.latency_ns))[:count]


def search_group(problem: Problem, count: int, kept_paths: int = EsgSettings().kept_paths) -> list[Path]:
    """ESG_1Q: the `count` cheapest paths within the budget; every stage needs an option.

    Exact unless more than `kept_paths` partial paths survive a stage. At most `kept_paths` times the options of a
    stage are looked at for each stage.
    """
    search = _Search(problem, count, kept_paths)
    for _ in problem.stages:
        search.extend()
    order = np.lexsort((search.ends.max(axis=1, initial=0), search.cost))[:count]
    return [
        Path(tuple(search.choices[row].tolist()), int(search.ends[row].max(initial=0)), float(search.cost[row]))
        for row in order
    ]


class _Search:
    """The partial paths of one group: `choices` and `ends` (paths, stages so far), `cost` (paths,), ascending."""

    def __init__(self, problem: Problem, count: int, kept_paths: int) -> None:
        stages = problem.stages
        self._problem = problem
        self._count = count
        self._kept_paths = kept_paths
        self._costs = [stage.cost * stage.probability for stage in stages]
        self._latencies = [stage.latency_ns if stage.on_path else np.zeros_like(stage.latency_ns) for stage in stages]
        self._quickest_ns = [int(latency.min()) for latency in self._latencies]
        self._cheapest = [float(cost.min()) for cost in self._costs]
        self._fastest = [
            float(cost[np.lexsort((cost, latency))[0]])
            for cost, latency in zip(self._costs, self._latencies, strict=True)
        ]
        self._bound = np.inf
        self.choices: Times = np.zeros((1, 0), np.int64)
        self.ends: Times = np.zeros((1, 0), np.int64)
        self.cost: Costs = np.zeros(1)

    def extend(self) -> None:
        """Add one stage to all paths; blocks go from cheap to dear, so that the bound falls early."""
        stage = self.choices.shape[1]
        order = np.argsort(self._costs[stage], kind="stable")
        rest, fastest_rest = sum(self._cheapest[stage + 1 :]), sum(self._fastest[stage + 1 :])
        step_costs, step_ns = self._costs[stage][order], self._latencies[stage][order]
        best: Costs = np.zeros(0)
        found: list[tuple[Times, Times, Times, Costs]] = []
        first, count = 0, len(self.cost)
        while first < count:
            room = self._limit() - rest - self.cost[first]  # for the next option, on the cheapest path left
            options = int(np.searchsorted(step_costs, room, side="right"))
            if not options:
                break
            block = slice(first, first + max(1, _EXTENDED_AT_ONCE // options))
            first = block.stop
            cost = self.cost[block, None] + step_costs[:options]
            ends = self._start_ns(block) + step_ns[:options]
            in_time = self._quickest_end_ns(block, ends) <= self._problem.budget_ns
            best = np.sort(np.concatenate((best, _smallest(cost[in_time] + fastest_rest, self._count))))[: self._count]
            if len(best) == self._count:
                self._bound = min(self._bound, float(best[-1]))
            rows, columns = np.nonzero(in_time & (cost + rest <= self._limit()))
            found.append((rows + block.start, order[columns], ends[rows, columns], cost[rows, columns]))
        self._keep(found, rest)

    def _limit(self) -> float:
        """The most that a path may cost at least."""
        return self._bound + abs(self._bound) * _ROUNDING

    def _start_ns(self, block: slice) -> Times:
        """When the next stage of the paths in the block can begin, (paths, 1)."""
        sources = self._problem.stages[self.choices.shape[1]].sources
        start: Times = self.ends[block, list(sources)].max(axis=1, initial=0)
        return start[:, None]

    def _quickest_end_ns(self, block: slice, ends: Times) -> Times:
        """The tLow of extended paths, (paths, options): `ends` and the quickest of all that follows."""
        stage = self.choices.shape[1]
        all_ends = [self.ends[block, index, None] for index in range(stage)] + [ends]
        for index in range(stage + 1, len(self._problem.stages)):
            start: Times = np.zeros((1, 1), np.int64)
            for source in self._problem.stages[index].sources:
                start = np.maximum(start, all_ends[source])
            all_ends.append(start + self._quickest_ns[index])
        latest = ends
        for other in all_ends:
            latest = np.maximum(latest, other)
        return latest

    def _keep(self, found: list[tuple[Times, Times, Times, Costs]], rest: float) -> None:
        """Take what is still within the bound, which fell on the way, cheapest first."""
        empty: Times = np.zeros(0, np.int64)
        rows, columns, ends, cost = (
            np.concatenate(parts) for parts in zip((empty, empty, empty, np.zeros(0)), *found, strict=True)
        )
        kept = np.argsort(cost, kind="stable")
        kept = kept[cost[kept] + rest <= self._limit()][: self._kept_paths]
        self.choices = np.column_stack((self.choices[rows[kept]], columns[kept]))
        self.ends = np.column_stack((self.ends[rows[kept]], ends[kept]))
        self.cost = cost[kept]


def _smallest(values: Costs, count: int) -> Costs:
    """The `count` smallest, in any order."""
    return values if len(values) <= count else np.partition(values, count - 1)[:count]
