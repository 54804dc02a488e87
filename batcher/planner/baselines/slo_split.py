"""Splits a pipeline's time over its stages, for planners that do not search the whole pipeline at once.

Sources: dominator groups and their shares are those of ESG (HPDC'24, "Dominator-based SLO Distribution for
Scalability"); average normalised length (ANL) is what that paper calls a stage's share. Ours: stages may have different
numbers of options, so they are compared at equal quantiles of their latencies; the exit's dominators are found in one
sweep over the topological order; a region that no dominator divides gives each stage its share of the longest path
through it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem, check_problem, path_of

_QUANTILES = np.linspace(0.0, 1.0, 33)


class StageGroup(NamedTuple):
    """Stages (ascending) that are planned together, and the time they may take from the first start to the last end."""

    stages: tuple[int, ...]
    budget_ns: int


def normalised_lengths(problem: Problem) -> list[float]:
    """The share of the pipeline's time that each stage takes, averaged over configurations (ANL).

    At each quantile, a stage's latency over that of the longest path. A stage off the path has length 0. Every stage
    needs an option.
    """
    profiles = [
        np.quantile(stage.latency_ns, _QUANTILES) if stage.on_path else np.zeros(len(_QUANTILES))
        for stage in problem.stages
    ]
    longest = np.maximum(_longest(problem, profiles), 1.0)
    return [float(np.mean(profile / longest)) for profile in profiles]


def stage_budgets(problem: Problem, lengths: Sequence[float]) -> list[int]:
    """The time of each stage by itself, in proportion to `lengths`: its part of the longest path through it.

    Stages that keep to theirs keep to the problem's budget on every path. A stage of length 0 is given all of it.
    """
    before = [0.0] * len(lengths)
    after = [0.0] * len(lengths)
    for index, stage in enumerate(problem.stages):
        before[index] = max((before[source] + lengths[source] for source in stage.sources), default=0.0)
    for index in reversed(range(len(lengths))):
        for source in problem.stages[index].sources:
            after[source] = max(after[source], lengths[index] + after[index])
    return [
        math.floor(problem.budget_ns * (length / (head + length + tail))) if length else problem.budget_ns
        for head, length, tail in zip(before, lengths, after, strict=True)
    ]


def dominators(sources: Sequence[Sequence[int]]) -> list[int]:
    """The stages on every path through the graph: the dominators of its exit, ascending.

    `sources` are those of each stage, all earlier. A stage is one exactly if no edge leads from before it past it,
    with an edge from the entry to each stage without sources and one to the exit from each stage that is no source.
    """
    count = len(sources)
    reach = [-1] * count
    for stage, earlier in enumerate(sources):
        for source in earlier:
            reach[source] = max(reach[source], stage)
    furthest = max((stage for stage, earlier in enumerate(sources) if not earlier), default=-1)
    found = []
    for stage in range(count):
        if furthest <= stage:
            found.append(stage)
        furthest = max(furthest, reach[stage] if reach[stage] >= 0 else count)
    return found


def plan_each_stage(problem: Problem, count: int, pick: Callable[[StageProblem, int], int | None]) -> list[Path]:
    """One path, if `count` allows: for each stage by itself the option that `pick` returns for its normalised budget.

    No path if `pick` finds no option for a stage. `pick` is not called for a stage with one option.
    """
    check_problem(problem)
    choices = []
    for stage, budget_ns in zip(problem.stages, stage_budgets(problem, normalised_lengths(problem)), strict=True):
        choice = pick(stage, budget_ns) if len(stage.cost) > 1 else 0
        if choice is None:
            return []
        choices.append(choice)
    path = path_of(problem, choices)
    return [path][:count] if path.latency_ns <= problem.budget_ns else []


def subproblem(problem: Problem, stages: Sequence[int], budget_ns: int) -> Problem:
    """The problem of some stages (ascending) by themselves: sources outside are dropped."""
    place = {stage: index for index, stage in enumerate(stages)}
    return Problem(
        tuple(
            replace(
                problem.stages[stage],
                sources=tuple(place[source] for source in problem.stages[stage].sources if source in place),
            )
            for stage in stages
        ),
        budget_ns,
    )


def split_groups(problem: Problem, lengths: Sequence[float], size: int = 3) -> list[StageGroup]:
    """Groups of at most `size` stages, and budgets in proportion to `lengths`; a fork counts its longest branch.

    Groups that keep to their budgets keep to the problem's.
    """
    count = len(problem.stages)
    if count <= size:
        return [StageGroup(tuple(range(count)), problem.budget_ns)]
    sources = [stage.sources for stage in problem.stages]
    if cuts := dominators(sources):
        parts = _series(count, cuts, size)
        spans = [_longest(subproblem(problem, part, 0), [np.array(lengths[i]) for i in part]).item() for part in parts]
        budgets = [math.floor(problem.budget_ns * (span / sum(spans))) if span else 0 for span in spans]
    elif len(parts := _branches(sources)) > 1:
        budgets = [problem.budget_ns] * len(parts)
    else:
        return [StageGroup((stage,), budget_ns) for stage, budget_ns in enumerate(stage_budgets(problem, lengths))]
    return [
        StageGroup(tuple(part[index] for index in group.stages), group.budget_ns)
        for part, budget_ns in zip(parts, budgets, strict=True)
        for group in split_groups(subproblem(problem, part, budget_ns), [lengths[index] for index in part], size)
    ]


def _series(count: int, cuts: Sequence[int], size: int) -> list[list[int]]:
    """The cuts and the regions between them in order, neighbours put together as long as they are at most `size`."""
    parts: list[list[int]] = []
    bounds = [-1, *cuts, count]
    for before, cut in pairwise(bounds):
        for segment in (list(range(before + 1, cut)), [cut] if cut < count else []):
            if parts and len(parts[-1]) + len(segment) <= size:
                parts[-1] += segment
            elif segment:
                parts.append(segment)
    return parts


def _branches(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The parts of the graph that no edge joins, each ascending."""
    branch = list(range(len(sources)))
    for stage, earlier in enumerate(sources):
        joined = {branch[source] for source in earlier} | {stage}
        branch = [min(joined) if label in joined else label for label in branch]
    return [[stage for stage, label in enumerate(branch) if label == name] for name in sorted(set(branch))]


def _longest(problem: Problem, lengths: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """The length of the longest path, elementwise over lengths of equal shapes."""
    ends: list[npt.NDArray[np.float64]] = []
    for stage, length in zip(problem.stages, lengths, strict=True):
        start = np.max([ends[source] for source in stage.sources], axis=0) if stage.sources else 0.0
        ends.append(start + length)
    return np.asarray(np.max(ends, axis=0), np.float64)
