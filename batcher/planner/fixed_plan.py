"""Plans of planners that choose once: every stage keeps its batch size and kind of partition until the next plan."""

from collections.abc import Sequence

from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.interface.plan_data import CostToGo, FixedOption, PipelinePlan, StagePlan
from sluice.batcher.planner.demand import DemandTable
from sluice.batcher.planner.exact import ExactPlanner, from_here
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem, check_path
from sluice.batcher.planner.registry import RegisteredPlanner
from sluice.batcher.planner.stage_options import Candidate, problem_of


def fixed_plan(
    search: PathPlanner,
    planner: RegisteredPlanner,
    demand: DemandTable,
    pipeline: PipelineConfig,
    candidates: Sequence[Sequence[Candidate]],
) -> PipelinePlan:
    """The plan of one pipeline by the `search` of a planner; where that finds none, the quickest there is.

    Raises ConfigError for a path that does not solve the problem.
    """
    problem = problem_of(demand, pipeline, candidates, pipeline.slo_ns)
    paths = search(problem)
    path = check_path(problem, paths[0], planner.name) if paths else ExactPlanner(problem).quickest()
    waits_ns = planner.queue_times(problem, path)
    bounded = all(choices[0].predicted for choices in candidates)
    return PipelinePlan(
        pipeline.name, _stages(problem, path, waits_ns), path.latency_ns, path.cost, bool(paths) and bounded
    )


def _stages(problem: Problem, path: Path, waits_ns: Sequence[int]) -> tuple[StagePlan, ...]:
    stages = []
    rests = _rests(problem, path)
    for stage, choice, wait_ns, rest in zip(problem.stages, path.choices, waits_ns, rests, strict=True):
        option = stage.options[choice]
        rule = FixedOption(option.batch, option.kind, wait_ns) if option.model else None  # a combiner needs none
        latency_ns, cost = int(stage.latency_ns[choice]), float(stage.cost[choice])
        stages.append(StagePlan(option.model, option.batch, option.kind, latency_ns, cost, rest, rule))
    return tuple(stages)


def _rests(problem: Problem, path: Path) -> list[CostToGo]:
    """For each stage the one way to go on: the longest path through its descendants, and the cost of all of them."""
    spans = [
        int(stage.latency_ns[choice]) if stage.on_path else 0
        for stage, choice in zip(problem.stages, path.choices, strict=True)
    ]
    after: list[set[int]] = [set() for _ in spans]
    tails = [0] * len(spans)
    for index in reversed(range(len(spans))):
        for source in problem.stages[index].sources:
            tails[source] = max(tails[source], spans[index] + tails[index])
            after[source] |= {index} | after[index]
    costs = [
        float(stage.cost[choice]) * stage.probability
        for stage, choice in zip(problem.stages, path.choices, strict=True)
    ]
    return [
        from_here(CostToGo((tail,), (sum(costs[each] for each in sorted(rest)),)), stage.probability)
        for tail, rest, stage in zip(tails, after, problem.stages, strict=True)
    ]
