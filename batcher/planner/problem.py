"""The planning problem of one pipeline, what a planner answers, and what a planner is."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Option(NamedTuple):
    """A configuration of a stage: `model` (one of the stage's variants) in batches of `batch` on partitions of `kind`.

    `servers` partitions of that kind take part; `share` is how much of the machine one of them is, in (0, 1];
    `service_ns` is what a batch takes once it runs.
    """

    model: str
    batch: int
    kind: str
    servers: int
    share: float
    service_ns: int


@dataclass(frozen=True, eq=False)
class StageProblem:
    """One stage: option i takes `latency_ns[i]` (waits included) and costs `cost[i]` a row; both of shape (options,).

    `sources` are the (earlier) stages that have to end before it begins. `probability` is the share of the request's
    rows that it runs for: its costs count that much. With `on_path` False its latency does not count: it runs too
    seldom to matter at the percentile that is planned for. `rate` is in rows a second. `options` describes the options;
    it may be empty where only figures matter.
    """

    name: str
    latency_ns: npt.NDArray[np.int64]
    cost: npt.NDArray[np.float64]
    options: tuple[Option, ...] = ()
    sources: tuple[int, ...] = ()
    probability: float = 1.0
    on_path: bool = True
    rate: float = 0.0


@dataclass(frozen=True, eq=False)
class Problem:
    """Stages in topological order, and the time that the whole pipeline may take."""

    stages: tuple[StageProblem, ...]
    budget_ns: int


class Path(NamedTuple):
    """One option a stage: the latency of the longest way through the pipeline and the cost of a row in all."""

    choices: tuple[int, ...]
    latency_ns: int
    cost: float


class PathPlanner(Protocol):
    """Finds the (up to) `count` cheapest paths within the budget, cheapest first; none when nothing fits.

    Of two with equal cost the quicker comes first. What a heuristic planner returns fits as well, but need not be the
    cheapest.
    """

    def __call__(self, problem: Problem, count: int = 1) -> list[Path]:
        """Solve one problem."""
        ...
