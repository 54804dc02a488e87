"""Improves a path that may not be the cheapest: spends its unused time, one stage at a time."""

import numpy as np

from sluice.batcher.planner.fronts.pareto import Costs
from sluice.batcher.planner.problem.problem import Problem, StageProblem

MAX_SWAPS = 8
"""Highest number of option changes, for each stage of the path."""


def spend_slack(problem: Problem, path: tuple[int, ...]) -> tuple[int, ...]:
    """The choices of a path that fits the budget and costs no more than the given one, which must fit.

    Greedy: of all changes of one stage's option that fit while the other stages keep theirs, it makes the change that
    saves most per latency added. It repeats this until no change saves anything or `MAX_SWAPS` a stage are made.
    """
    choices = list(path)
    for _ in range(MAX_SWAPS * len(choices)):
        best, swap = 0.0, None
        for index, (stage, room_ns) in enumerate(zip(problem.stages, _rooms(problem, choices), strict=True)):
            worth = _worth(stage, choices[index], room_ns)
            option = int(worth.argmax())
            if worth[option] > best:
                best, swap = float(worth[option]), (index, option)
        if swap is None:
            break
        choices[swap[0]] = swap[1]
    return tuple(choices)


def _worth(stage: StageProblem, chosen: int, room_ns: int) -> Costs:
    """For each option the cost saved per nanosecond added to the chosen one; 0 if it does not fit."""
    latency_ns = stage.latency_ns if stage.on_path else np.zeros_like(stage.latency_ns)
    more_ns = np.maximum(latency_ns - latency_ns[chosen], 1)
    saved = (stage.cost[chosen] - stage.cost) * stage.probability
    return np.where(latency_ns <= room_ns, saved / more_ns, 0.0)


def _rooms(problem: Problem, choices: list[int]) -> list[int]:
    """For each stage the latency that it may have if the others keep theirs."""
    stages = problem.stages
    begins: list[int] = []
    spans = [int(stage.latency_ns[choice]) * stage.on_path for stage, choice in zip(stages, choices, strict=True)]
    for stage in stages:
        begins.append(max([begins[source] + spans[source] for source in stage.sources], default=0))
    tails = [0] * len(stages)
    for index in reversed(range(len(stages))):
        for source in stages[index].sources:
            tails[source] = max(tails[source], spans[index] + tails[index])
    return [problem.budget_ns - begin - tail for begin, tail in zip(begins, tails, strict=True)]
