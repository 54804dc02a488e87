"""INFless: every stage by itself takes the most efficient configuration that keeps to its part of the objective.

Source: "INFless: A Native Serverless System for Low-Latency, High-Throughput Inference" (ASPLOS'22) and its public
code: a batch may take half of the objective (the other half is for filling it), a single row all of it; an instance
serves at most r_max and at least r_min rows a second, and is admitted if the rate reaches r_min; the most efficient one
wins. The paper serves single functions; that such systems split a pipeline's objective without regard to how its stages
hang together is the ESG paper's account of it. Ours: the split itself (average normalised length, stage by stage);
partitions are fixed and taken whole, so that no fragment is left over and efficiency is r_max per share; an option
whose latency, waits included, exceeds the stage's part is left out as well; one configuration a stage.
"""

import numpy as np

from sluice.batcher.planner.baselines.option_grid import option_table
from sluice.batcher.planner.baselines.slo_split import normalised_lengths, plan_each_stage, stage_budgets
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem
from sluice.batcher.planner.registry import path_planner
from sluice.models.units import NS_PER_S


def fill_times(problem: Problem, path: Path) -> list[int]:
    """The time for which each stage's batch fills: its part of the objective, less the time of the batch (ns).

    A single row does not wait.
    """
    budgets_ns = stage_budgets(problem, normalised_lengths(problem))
    chosen = [stage.options[choice] for stage, choice in zip(problem.stages, path.choices, strict=True)]
    return [
        max(budget_ns - option.service_ns, 0) if option.batch > 1 else 0
        for option, budget_ns in zip(chosen, budgets_ns, strict=True)
    ]


@path_planner(
    "infless",
    "each stage's most efficient option within half of its part of the objective",
    queue_times=fill_times,
)
def plan_infless(problem: Problem, count: int = 1) -> list[Path]:
    """At most one path, whatever `count`; ConfigError if a stage has only figures."""
    return plan_each_stage(problem, count, _pick)


def _pick(stage: StageProblem, budget_ns: int) -> int | None:
    table = option_table(stage)
    single = table.batch == 1
    most = np.floor(table.batch * NS_PER_S / np.maximum(table.service_ns, 1))
    least = np.floor(table.batch * NS_PER_S / np.maximum(budget_ns - table.service_ns, 1))
    fits = (table.service_ns <= np.where(single, budget_ns, budget_ns / 2)) & (stage.latency_ns <= budget_ns)
    if stage.rate:
        fits &= np.where(single, 0.0, least) <= stage.rate
    if not fits.any():
        return None
    efficiency = np.where(fits, most / table.share, -1.0)
    return int(np.lexsort((stage.latency_ns, -efficiency))[0])
