"""The paths that a search for the cheapest configurations of a chain has to look at, and the cost that a split loses.

ESG (HPDC 2024) searches the paths of configurations of a chain, and two blades spare it most of them: one cuts partial
paths that must miss the objective, the other those that must cost more than the best found. Longer chains are cut into
groups of three stages by the dominators of the graph, each with a part of the objective (ANL), and searched by
themselves. Counted here is what no order of search can spare: the partial paths whose least time is within the
objective and whose least cost is within that of the fifth best path. They are counted, not visited, on a grid of times
and costs. The exact planner merges fronts instead; its work is counted in pairs of an option and a step of a front.
"""

import random
from collections.abc import Sequence
from statistics import fmean, median

import msgspec
import numpy as np

from sluice.batcher.planner.baselines.brute_force import plan_brute_force
from sluice.batcher.planner.baselines.esg import plan_esg
from sluice.batcher.planner.baselines.slo_split import normalised_lengths, split_groups, subproblem
from sluice.batcher.planner.exact import ExactPlanner, plan_exact
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem, path_of
from sluice.loadgen.papers.experiment import (
    Effort,
    ExperimentFinding,
    ExperimentReport,
    GateVerdict,
    PaperExperiment,
    gated,
)
from sluice.models.units import NS_PER_MS, NS_PER_S

STAGES = (3, 5, 7)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CORES = (1, 2, 4, 8)
SLICES = (1, 2, 3, 4, 5, 6, 7, 8)
CORE_PRICE, SLICE_PRICE = 0.034 / 3600, 0.67 / 3600
SLACKS = {"strict": 0.1, "moderate": 0.3, "relaxed": 0.6}
"""The objective, from that of the quickest options (0) to that of the cheapest (1)."""
BEST = 5
GRID = 240
ENUMERATED = {3: 256, 5: 28, 7: 11}
"""Options a stage with which all paths of a chain can be tried."""
NO_LIMIT = 1 << 30


def stage(chance: random.Random, name: str, sources: Sequence[int] = ()) -> StageProblem:
    """256 options: time grows with a power of the batch, falls with powers of slices and cores, and has 3 % noise."""
    base_ms, fixed = chance.uniform(2, 20), chance.uniform(0.1, 0.6)
    grows, shrinks, helps = chance.uniform(0.6, 1), chance.uniform(0.4, 0.95), chance.uniform(0.05, 0.4)
    latencies, costs = [], []
    for batch in BATCHES:
        for cores in CORES:
            for slices in SLICES:
                ms = base_ms * (fixed + (1 - fixed) * batch**grows) * (8 / slices) ** shrinks * cores**-helps
                ns = round(ms * chance.lognormvariate(0, 0.03) * NS_PER_MS)
                latencies.append(ns)
                costs.append(ns / NS_PER_S * (cores * CORE_PRICE + slices * SLICE_PRICE) / batch)
    return StageProblem(name, np.array(latencies), np.array(costs), sources=tuple(sources))


def chain(seed: int, stages: int, slack: float, options: int | None = None) -> Problem:
    """A chain with an objective; with `options`, each stage has that many of its 256, evenly spread by time."""
    chance = random.Random(seed)
    found = [stage(chance, f"s{index}", (index - 1,) if index else ()) for index in range(stages)]
    if options is not None:
        found = [_some(each, options) for each in found]
    quickest = path_of(Problem(tuple(found), 0), [int(each.latency_ns.argmin()) for each in found]).latency_ns
    cheapest = path_of(Problem(tuple(found), 0), [int(each.cost.argmin()) for each in found]).latency_ns
    return Problem(tuple(found), int(quickest + slack * (cheapest - quickest)))


def _some(full: StageProblem, options: int) -> StageProblem:
    order = np.argsort(full.latency_ns, kind="stable")
    picked = order[np.linspace(0, len(order) - 1, options).astype(int)]
    return StageProblem(full.name, full.latency_ns[picked], full.cost[picked], sources=full.sources)


def paths_left(problem: Problem, most_cost: float | None, *, times: bool = True, grid: int = GRID) -> int:
    """The partial paths of a chain that are left, all lengths together.

    With `times`, those that must take longer than the budget are cut; with `most_cost`, those that must cost more.
    Times and costs are rounded down to that many steps of the budget and of `most_cost`.
    """
    time_steps = [
        each.latency_ns * grid // problem.budget_ns if times else each.latency_ns * 0 for each in problem.stages
    ]
    cost_steps = [
        each.cost * 0 if most_cost is None else np.floor(each.cost * grid / most_cost * (1 + 1e-12))
        for each in problem.stages
    ]
    shape = (grid + 1 if times else 1, 1 if most_cost is None else grid + 1)
    counts = np.zeros(shape)
    counts[0, 0] = 1
    total = 0.0
    for index in range(len(problem.stages)):
        longer = np.zeros(shape)
        steps, numbers = np.unique(
            np.column_stack((time_steps[index], cost_steps[index].astype(np.int64))), axis=0, return_counts=True
        )
        for (time, cost), number in zip(steps.tolist(), numbers.tolist(), strict=True):
            if time < shape[0] and cost < shape[1]:
                longer[time:, cost:] += number * counts[: shape[0] - time, : shape[1] - cost]
        counts = longer
        time_left = shape[0] - int(sum(each.min() for each in time_steps[index + 1 :]))
        cost_left = shape[1] - int(sum(each.min() for each in cost_steps[index + 1 :]))
        total += float(counts[: max(time_left, 0), : max(cost_left, 0)].sum())
    return round(total)


class SplitResult(msgspec.Struct, frozen=True):
    """One chain: partial paths by what cuts them, pairs that the exact planner merges, and the cost that groups lose.

    `lost` is a part of the least cost; None if the groups found no path within the objective.
    """

    none: int
    time: int
    cost: int
    both: int
    groups: int
    merged: int
    lost: float | None


def play(seed: int, stages: int, slack: float) -> SplitResult:
    """Count the paths of a chain, plan it in groups, and compare with the least cost."""
    problem = chain(seed, stages, slack)
    planner = ExactPlanner(problem, NO_LIMIT)
    best = planner.paths(BEST)
    groups = 0
    for group in split_groups(problem, normalised_lengths(problem)):
        part = subproblem(problem, group.stages, group.budget_ns)
        if found := ExactPlanner(part, NO_LIMIT).paths(BEST):
            groups += paths_left(part, found[-1].cost)
    found = plan_esg(problem)
    return SplitResult(
        none=paths_left(problem, None, times=False),
        time=paths_left(problem, None),
        cost=paths_left(problem, best[-1].cost, times=False),
        both=paths_left(problem, best[-1].cost),
        groups=groups,
        merged=sum(len(each.cost) * len(rest.cost) for each, rest in zip(problem.stages, planner.rests(), strict=True)),
        lost=found[0].cost / best[0].cost - 1 if found else None,
    )


def run(effort: Effort) -> ExperimentReport:
    """Chains of three lengths with three objectives, each with every seed."""
    seeds = range(1, (2 if effort.quick else effort.seeds) + 1)
    played = {
        (stages, name): [play(seed, stages, slack) for seed in seeds]
        for stages in STAGES
        for name, slack in SLACKS.items()
    }
    findings = [
        ExperimentFinding(
            "partial paths of 3 stages without blades",
            f"{played[3, 'strict'][0].none:,}",
            "7258 ms for the 16,777,216 whole ones",
        ),
        _ours(seeds),
        _one_group(played),
        *(_groups(stages, [each for name in SLACKS for each in played[stages, name]]) for stages in STAGES[1:]),
        _strict_and_relaxed(played),
    ]
    return ExperimentReport(tuple(findings), (_table(played),))


def _ours(seeds: Sequence[int]) -> ExperimentFinding:
    """The cost that the exact planner loses, beside an enumeration, and beside fronts that are never thinned."""
    beside_all, beside_whole = [], []
    for stages, options in ENUMERATED.items():
        for slack in SLACKS.values():
            for seed in seeds:
                few, whole = chain(seed, stages, slack, options), chain(seed, stages, slack)
                beside_all.append(_lost(plan_exact(few), plan_brute_force(few)))
                beside_whole.append(_lost(plan_exact(whole), ExactPlanner(whole, NO_LIMIT).paths()))
    tried = ", ".join(f"{options} options at {stages} stages" for stages, options in ENUMERATED.items())
    return gated(
        f"cost that the exact planner loses, at most, where all paths can be tried ({tried}) and at 256 options",
        f"{max(*beside_all, *beside_whole):.2%}",
        gate="0",
        is_met=max(*beside_all, *beside_whole) < 1e-9,
        why=f"{max(beside_all):.2%} beside all paths, and {max(beside_whole):.2%} beside fronts that are not thinned",
    )


def _lost(found: Sequence[Path], best: Sequence[Path]) -> float:
    """The part of the least cost that a planner's path costs more; all of it where it found none."""
    return found[0].cost / best[0].cost - 1 if found else 1.0


def _one_group(played: dict[tuple[int, str], list[SplitResult]]) -> ExperimentFinding:
    lost = [1.0 if each.lost is None else each.lost for name in SLACKS for each in played[3, name]]
    return gated("cost that ESG_1Q loses in one group, at most", f"{max(lost):.2%}", gate="0", is_met=max(lost) < 1e-9)


def _groups(stages: int, results: Sequence[SplitResult]) -> ExperimentFinding:
    lost = sorted(each.lost for each in results if each.lost is not None)
    failed = len(results) - len(lost)
    return ExperimentFinding(
        f"cost that groups of three lose, {stages} stages",
        f"{fmean(lost):.1%} on average, {lost[len(lost) * 9 // 10]:.1%} in a tenth, at most {max(lost):.1%}; "
        f"{failed} of {len(results)} objectives that can be met are missed",
    )


def _strict_and_relaxed(played: dict[tuple[int, str], list[SplitResult]]) -> ExperimentFinding:
    strict, relaxed = (median(each.both for each in played[3, name]) for name in ("strict", "relaxed"))
    left = ", ".join(
        f"{median(each.cost / each.none for each in played[3, name]):.2%} where it is {name}"
        for name in ("strict", "relaxed")
    )
    return ExperimentFinding(
        "partial paths that both blades leave, 3 stages, strict and relaxed",
        f"{strict:,.0f} and {relaxed:,.0f}",
        published="less overhead where the objective is strict",
        verdict=GateVerdict.SHOWN if strict <= relaxed else GateVerdict.DIFFERS,
        why=""
        if strict <= relaxed
        else f"the cost blade, which goes by what the best paths in time cost, leaves {left}",
    )


def _table(played: dict[tuple[int, str], list[SplitResult]]) -> str:
    lines = [
        "Partial paths that are left (medians), and pairs of options and steps of fronts, which the exact planner "
        "merges:\n",
        "| stages | objective | no blade | time blade | cost blade | both | both, in groups of three | pairs, exact |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (stages, name), results in played.items():
        none, time, cost, both, groups, merged = (
            f"{median(getattr(each, field) for each in results):,.0f}"
            for field in ("none", "time", "cost", "both", "groups", "merged")
        )
        lines.append(f"| {stages} | {name} | {none} | {time} | {cost} | {both} | {groups} | {merged} |")
    return "\n".join(lines) + "\n"


EXPERIMENT = PaperExperiment(
    "esg-split",
    "a search needs its blades and groups, which lose cost; fronts lose none",
    "ESG, HPDC 2024",
    given="256 configurations a function, the two blades, dominator groups of three functions, and brute force",
    assumed="the times of configurations, objectives between those of the quickest and the cheapest ones, and K = 5",
    run=run,
)
