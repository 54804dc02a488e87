"""Orion: from the smallest configuration everywhere, one step at a time, the step that helps most.

Source: "ORION and the Three Rights: Sizing, Bundling, and Prewarming for Serverless DAGs" (OSDI'22), the sizing search
as in its public code: every stage starts at the minimum size, each round tries one size more on each stage and keeps
the step after which the whole pipeline is quickest, until the target is met. Ours: the dimensions are share, batch size
and what else there is for a share (models, kinds of partition) instead of memory, the sizes those of the options;
latencies are the problem's figures, not sampled distributions; no bundling or prewarming. Steps only go up, which
bounds them; `max_steps` stands for the source's cut-off of the search time.
"""

from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.batcher.planner.baselines.option_grid import option_grid
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem, check_problem, path_of
from sluice.batcher.planner.registry import path_planner

Cell = tuple[int, ...]
_STEPS_PER_MS = 5  # of three stages


class OrionSettings(msgspec.Struct, frozen=True):
    """`max_steps` bounds the search."""

    max_steps: int = 1000


@path_planner(
    "orion",
    "a path that is quick enough, step by step from the smallest configuration",
    OrionSettings,
    work={"max_steps": _STEPS_PER_MS},
)
def orion(settings: OrionSettings) -> PathPlanner:
    """The planner with its settings."""
    return partial(plan_orion, max_steps=settings.max_steps)


def plan_orion(problem: Problem, count: int = 1, *, max_steps: int = OrionSettings().max_steps) -> list[Path]:
    """At most one path, whatever `count`; ConfigError if a stage has only figures."""
    check_problem(problem)
    grids = [option_grid(stage) for stage in problem.stages]
    cells: list[Cell] = [(0, *np.argwhere(grid[0] >= 0)[0].tolist()) for grid in grids]
    path = _path(problem, grids, cells)
    for _ in range(max_steps):
        if path.latency_ns <= problem.budget_ns:
            return [path][:count]
        tried = []
        for stage, grid in enumerate(grids):
            for cell in _next_sizes(grid, cells[stage]):
                stepped = [*cells[:stage], cell, *cells[stage + 1 :]]
                tried.append((_path(problem, grids, stepped), stepped))
        if not tried:
            break
        path, cells = min(tried, key=lambda entry: (entry[0].latency_ns, entry[0].cost))
    return []


def _path(problem: Problem, grids: list[npt.NDArray[np.int64]], cells: list[Cell]) -> Path:
    return path_of(problem, [int(grid[cell]) for grid, cell in zip(grids, cells, strict=True)])


def _next_sizes(grid: npt.NDArray[np.int64], cell: Cell) -> Iterator[Cell]:
    """The next cell that has an option, along each dimension."""
    for axis, place in enumerate(cell):
        line = np.moveaxis(grid, axis, -1)[cell[:axis] + cell[axis + 1 :]]
        larger = np.flatnonzero(line[place + 1 :] >= 0)
        if len(larger):
            yield (*cell[:axis], place + 1 + int(larger[0]), *cell[axis + 1 :])
