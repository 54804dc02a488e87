"""FaST-GShare: every stage by itself takes the configuration with the most throughput per resource.

Source: "FaST-GShare: Enabling Efficient Spatio-Temporal GPU Sharing in Serverless Computing for Deep Learning
Inference" (ICPP'23): the scale-up rule. Whole multiples of the most efficient configuration (RPR: requests a second
over SM share times time quota) serve the rate; what is left over goes to the configuration that covers it most tightly.
Ours: a partition is never shared in time, so the quota is 1; a pipeline's objective is split by average normalised
length, stage by stage, which the paper does not treat; a stage has one configuration, so the left-over rule decides
only where the rate is below one instance of the most efficient.
"""

import numpy as np

from sluice.batcher.planner.baselines.option_grid import option_table
from sluice.batcher.planner.baselines.slo_split import plan_each_stage
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem
from sluice.batcher.planner.registry import path_planner
from sluice.models.units import NS_PER_S


@path_planner(
    "fast_gshare",
    "each stage's most efficient option within its part of the objective",
)
def plan_fast_gshare(problem: Problem, count: int = 1) -> list[Path]:
    """At most one path, whatever `count`; ConfigError if a stage has only figures."""
    return plan_each_stage(problem, count, _pick)


def _pick(stage: StageProblem, budget_ns: int) -> int | None:
    table = option_table(stage)
    fits = stage.latency_ns <= budget_ns
    if not fits.any():
        return None
    throughput = table.batch * NS_PER_S / np.maximum(table.service_ns, 1)
    per_resource = np.where(fits, throughput / table.share, -1.0)
    best = int(np.lexsort((stage.latency_ns, -per_resource))[0])
    if not 0 < stage.rate < throughput[best]:
        return best
    spare = np.where(fits & (throughput > stage.rate), throughput - stage.rate, np.inf)
    return int(np.lexsort((table.share, spare))[0])
