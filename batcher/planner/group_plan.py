"""The plan of ESG: a stage searches again at every dispatch, over the rest of its pipeline in dominator groups.

Source: "ESG: Pipeline-Conscious Efficient Scheduling of DNN Workflows on Serverless Platforms with Shareable GPUs"
(HPDC'24), as in `baselines/esg.py`. A search over one group of three stages is exact, so its answer for any time left
is a table: the least cost of the rest of the group within a time (`fronts`). At a dispatch only the options of one
stage are then looked at. As in the paper, a stage takes the time of its batch, without waits for others.
"""

from collections.abc import Sequence

from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.interface.plan_data import CostToGo, GroupSearch, PipelinePlan, StagePlan
from sluice.batcher.planner.baselines.esg import GROUP_STAGES
from sluice.batcher.planner.baselines.slo_split import normalised_lengths, split_groups, subproblem
from sluice.batcher.planner.demand import DemandTable
from sluice.batcher.planner.exact import ExactPlanner, from_here
from sluice.batcher.planner.problem.graph import ancestors
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem
from sluice.batcher.planner.stage_options import Candidate, problem_of, without_waits


def group_plan(
    search: PathPlanner, demand: DemandTable, pipeline: PipelineConfig, candidates: Sequence[Sequence[Candidate]]
) -> PipelinePlan:
    """The plan of one pipeline, with the path that `search` finds now; where it finds none, the quickest there is."""
    problem = without_waits(demand, problem_of(demand, pipeline, candidates, pipeline.slo_ns))
    paths = search(problem)
    path = paths[0] if paths else ExactPlanner(problem).quickest()
    lengths = normalised_lengths(problem)
    stages = [_stage_plan(problem, path, lengths, index) for index in range(len(problem.stages))]
    return PipelinePlan(pipeline.name, tuple(stages), path.latency_ns, path.cost, bool(paths))


def _stage_plan(problem: Problem, path: Path, lengths: Sequence[float], index: int) -> StagePlan:
    stage, choice = problem.stages[index], path.choices[index]
    option = stage.options[choice]
    rest, share = _search_of(problem, lengths, index)
    rule = GroupSearch(share) if option.model else None  # a combiner needs none
    latency_ns, cost = int(stage.latency_ns[choice]), float(stage.cost[choice])
    return StagePlan(
        option.model, option.batch, option.kind, latency_ns, cost, from_here(rest, stage.probability), rule
    )


def _search_of(problem: Problem, lengths: Sequence[float], index: int) -> tuple[CostToGo, float]:
    """The least cost of the rest of a stage's group, against the time for it; the group's part of the time left.

    The groups are those of the stage and all that follows it.
    """
    before = ancestors(tuple(stage.sources for stage in problem.stages))
    left = [each for each in range(len(before)) if each == index or index in before[each]]
    ahead = subproblem(problem, left, problem.budget_ns)
    group = split_groups(ahead, [lengths[each] for each in left], GROUP_STAGES)[0]
    rest = ExactPlanner(subproblem(ahead, group.stages, problem.budget_ns)).rests()[0]
    return rest, group.budget_ns / problem.budget_ns
