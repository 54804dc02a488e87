"""Prewarming: finds the stages on the most likely path, whose models are loaded before it is known that they run.

Xanadu (Middleware 2020) prepares each stage on the most likely path so that it is ready when the stage before it ends.
The probability of a path is the product of the probabilities of its branches. Taking the likeliest branch each time
(`greedy`) may lead to another path: with branches of .6 and .4, of which the first is divided by three and the second
is not, the path through the second is twice as likely.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from sluice.batcher.interface.residency_config import Likelihood
from sluice.batcher.state import PipelineState, StageState

Node = TypeVar("Node")
Branches = Mapping[Node, Sequence[tuple[Node, float]]]
"""The possible successors of each node with their probabilities; the rest to 1 is the probability of an end."""


def most_likely_path(branches: Branches[Node], start: Node, likelihood: Likelihood) -> tuple[list[Node], float]:
    """The nodes of the most likely path from `start` to an end, and its probability; the graph has no cycles.

    Of equally likely paths, the one with more nodes is taken, then the one whose branches come first.
    """
    following = branches.get(start, ())
    ends = max(1.0 - sum(probability for _, probability in following), 0.0)
    paths = [(probability, *most_likely_path(branches, node, likelihood)) for node, probability in following]
    if likelihood is Likelihood.GREEDY:
        best = max(paths, key=lambda path: path[0], default=None)
        chosen = best is not None and best[0] >= ends
    else:
        best = max(paths, key=lambda path: path[0] * path[2], default=None)
        chosen = best is not None and best[0] * best[2] >= ends
    if best is None or not chosen:
        return [start], ends if following else 1.0
    return [start, *best[1]], best[0] * best[2]


def likely_stages(pipeline: PipelineState, starts: Sequence[StageState], likelihood: Likelihood) -> dict[int, float]:
    """The stages that are likely to run once `starts` do, and how likely that is; `starts` are among them.

    These are the stages of the most likely path from each start, and the stages that certainly run with them.
    """
    branches = {
        stage.index: [
            (index, pipeline.stages[index].run_probability)
            for index in stage.dependents
            if (when := pipeline.stages[index].config.when) is not None and when.stage == stage.index
        ]
        for stage in pipeline.stages
    }
    likely = {stage.index: 1.0 for stage in starts}
    for stage in pipeline.stages:
        runs_with_others = stage.config.when is None and all(source in likely for source in stage.waits_for)
        if stage.waits_for and runs_with_others and stage.index not in likely:
            likely[stage.index] = min(likely[source] for source in stage.waits_for)
        if stage.index in likely:
            path, _ = most_likely_path(branches, stage.index, likelihood)
            for before, after in pairwise(path):
                probability = likely[before] * pipeline.stages[after].run_probability
                likely[after] = max(likely.get(after, 0.0), probability)
    return likely
