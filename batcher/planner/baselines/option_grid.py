"""The options of a stage by batch size and share, for planners that compare or step along these two."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.batcher.planner.problem.problem import StageProblem
from sluice.models.errors import ConfigError


class OptionTable(NamedTuple):
    """Batch sizes, shares of the machine and service times of a stage's options, each (options,)."""

    batch: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]
    service_ns: npt.NDArray[np.int64]


def option_table(stage: StageProblem) -> OptionTable:
    """The options as arrays; ConfigError if the stage has only figures."""
    if len(stage.options) != len(stage.cost):
        raise ConfigError(
            f"stage {stage.name!r}: this planner needs the batch size and share of each option, "
            f"got {len(stage.options)} of them for {len(stage.cost)} costs"
        )
    return OptionTable(
        np.array([option.batch for option in stage.options], np.int64),
        np.array([option.share for option in stage.options], np.float64),
        np.array([option.service_ns for option in stage.options], np.int64),
    )


def option_grid(stage: StageProblem) -> npt.NDArray[np.int64]:
    """The options over (shares, batch sizes, alternatives): an index, or -1 where there is none.

    Shares and batch sizes ascend. Alternatives of one share are its models and kinds of partition, the slowest on
    average first. Every share has an option. ConfigError if the stage has only figures, and more than one.
    """
    if len(stage.cost) == 1:
        return np.zeros((1, 1, 1), np.int64)
    table = option_table(stage)
    shares, row = np.unique(table.share, return_inverse=True)
    batches, column = np.unique(table.batch, return_inverse=True)
    alternatives: dict[tuple[int, str, str], list[int]] = {}
    for index, option in enumerate(stage.options):
        alternatives.setdefault((int(row[index]), option.model, option.kind), []).append(index)
    grid = np.full((len(shares), len(batches), len(alternatives)), -1, np.int64)
    rank = [0] * len(shares)
    for indices in sorted(alternatives.values(), key=lambda indices: -stage.latency_ns[indices].mean()):
        share = int(row[indices[0]])
        grid[share, column[indices], rank[share]] = indices
        rank[share] += 1
    return grid[:, :, : max(rank)]
