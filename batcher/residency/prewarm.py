"""Prewarming: finds the stages on the most likely path, whose models are loaded before it is known that they run.

Xanadu (Middleware 2020) prepares each stage on the most likely path so that it is ready when the stage before it ends.
The probability of a path is the product of the probabilities of its branches. Taking the likeliest branch each time
(`greedy`) may lead to another path: with branches of .6 and .4, of which the first is divided by three and the second
is not, the path through the second is twice as likely.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from sluice.batcher.interface.residency_config import Likelihood
from sluice.batcher.state import ModelState, PipelineState, Request, StageRun, StageState, service_ns

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


def likely_stages(
    pipeline: PipelineState,
    starts: Sequence[StageState],
    likelihood: Likelihood,
    runs: Sequence[StageRun | None] = (),
) -> dict[int, float]:
    """The stages that are likely to run once `starts` do, and how likely that is; `starts` are among them.

    These are the stages of the most likely path from each start, and the stages that certainly run with them. Of a
    request under way, `runs` are the stages of which it is known for how many rows they run.
    """

    def is_open(index: int) -> bool:
        return not runs or runs[index] is None

    branches = {
        stage.index: [
            (index, pipeline.stages[index].run_probability)
            for index in stage.dependents
            if (when := pipeline.stages[index].config.when) is not None and when.stage == stage.index and is_open(index)
        ]
        for stage in pipeline.stages
    }
    likely = {stage.index: 1.0 for stage in starts}
    for stage in pipeline.stages:
        runs_with_others = stage.config.when is None and all(source in likely for source in stage.waits_for)
        runs_with_others = runs_with_others and is_open(stage.index)
        if stage.waits_for and runs_with_others and stage.index not in likely:
            likely[stage.index] = min(likely[source] for source in stage.waits_for)
        if stage.index in likely:
            path, _ = most_likely_path(branches, stage.index, likelihood)
            for before, after in pairwise(path):
                probability = likely[before] * pipeline.stages[after].run_probability
                likely[after] = max(likely.get(after, 0.0), probability)
    return likely


def stages_ahead(request: Request, likelihood: Likelihood, min_probability: float) -> frozenset[int]:
    """The stages, of those that it is not known of yet, that a request under way reaches with that probability."""
    pipeline, runs = request.pipeline, request.runs
    starts = [stage for stage in pipeline.stages if (run := runs[stage.index]) is not None and run.rows]
    likely = likely_stages(pipeline, starts, likelihood, runs)
    return frozenset(index for index, share in likely.items() if runs[index] is None and share >= min_probability)


def needed_times(
    request: Request, ahead: Container[int], now_ns: int, ready_ns: Callable[[ModelState], int], hand_off_ns: int
) -> list[tuple[int, StageState, ModelState]]:
    """When a request under way is predicted to reach the stages `ahead`, with their models, where nothing else waits.

    `ready_ns` is when a model is there that no partition holds, if it is loaded from now on. O(stages + entries).
    """
    stages = request.pipeline.stages
    open_entries = {
        entry.stage: entry
        for entry in request.entries
        if entry.queued or entry.retry_group is not None or entry.batch is not None
    }
    needed: list[tuple[int, StageState, ModelState]] = []
    ends_ns: list[int] = []
    for stage in stages:
        model, is_known = request.model_of(stage), request.runs[stage.index] is not None
        entry = open_entries.get(stage.index)
        if is_known and entry is None:  # it is over, or it is a combiner
            ends_ns.append(now_ns)
            continue
        begin_ns = max([ends_ns[source] for source in stage.waits_for], default=now_ns)
        batch = None if entry is None else entry.batch
        if batch is not None:
            ends_ns.append(max(batch.dispatched_ns + batch.expected_ns, now_ns))
            continue
        if model is not None and stage.index in ahead:
            needed.append((begin_ns, stage, model))
        if model is not None and not model.served:
            is_prepared = is_known or stage.index in ahead
            begin_ns = max(begin_ns, ready_ns(model)) if is_prepared else begin_ns + ready_ns(model) - now_ns
        ends_ns.append(begin_ns + service_ns(model, hand_off_ns))
    return needed
