"""What has to hold of a planning problem before it is solved."""

import numpy as np

from sluice.batcher.planner.problem import Problem, StageProblem
from sluice.models.errors import ConfigError

MAX_LATENCY_NS = 1 << 55
"""A year: sums over a pipeline stay far from the end of 64 bits."""


def check_problem(problem: Problem) -> None:
    """Raise ConfigError, which names the stage, where a planner could not make sense of the figures."""
    if not problem.stages:
        raise ConfigError("planning problem: no stages, expected at least one")
    for index, stage in enumerate(problem.stages):
        _check_stage(stage)
        for source in stage.sources:
            if not 0 <= source < index:
                raise ConfigError(f"stage {stage.name!r}: source {source} does not come before it (it is {index})")


def _check_stage(stage: StageProblem) -> None:
    latency_ns, cost = stage.latency_ns, stage.cost
    if latency_ns.ndim != 1 or latency_ns.shape != cost.shape:
        raise ConfigError(
            f"stage {stage.name!r}: latencies {latency_ns.shape} and costs {cost.shape}, expected one of each an option"
        )
    if not len(latency_ns):
        raise ConfigError(f"stage {stage.name!r}: no option, expected at least one")
    if latency_ns.min() < 0 or latency_ns.max() > MAX_LATENCY_NS:
        option = int(np.flatnonzero((latency_ns < 0) | (latency_ns > MAX_LATENCY_NS))[0])
        raise ConfigError(
            f"stage {stage.name!r}: option {option} takes {latency_ns[option]} ns, expected 0 to a year of nanoseconds"
        )
    if not np.isfinite(cost).all():
        option = int(np.flatnonzero(~np.isfinite(cost))[0])
        raise ConfigError(
            f"stage {stage.name!r}: option {option} costs {cost[option]}, expected a finite number: see `prices`"
        )
    if not 0 <= stage.probability <= 1:
        raise ConfigError(f"stage {stage.name!r}: probability {stage.probability}, expected 0 to 1")
