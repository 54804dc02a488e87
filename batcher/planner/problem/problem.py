"""The planning problem of one pipeline, the answer to it, and the protocol of planners."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sluice.models.errors import ConfigError
from sluice.models.units import ns_to_ms

MAX_LATENCY_NS = 1 << 55
"""A year: sums over a pipeline stay far from the end of 64 bits."""


class Option(NamedTuple):
    """A configuration of a stage: `model` (one of the stage's variants) in batches of `batch` on partitions of `kind`.

    `servers` partitions of that kind take part; `share` is the part of the machine that one of them is, in (0, 1];
    `service_ns` is the time of a batch once it runs.
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

    `sources` are the (earlier) stages that must end before it begins. `probability` is the share of the request's rows
    that it runs for: its costs are weighted by it. With `on_path` False its latency does not count: it runs too seldom
    to matter at the percentile that is planned for. `rate` is in rows a second. `options` describes the options; it
    may be empty where only figures matter.
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
    """Stages in topological order, and the time budget of the whole pipeline."""

    stages: tuple[StageProblem, ...]
    budget_ns: int


class Path(NamedTuple):
    """One option a stage: the latency of the longest path through the pipeline, and the total cost of a row."""

    choices: tuple[int, ...]
    latency_ns: int
    cost: float


class PathPlanner(Protocol):
    """Finds the (up to) `count` cheapest paths within the budget, cheapest first; none when nothing fits.

    Of two with equal cost the quicker comes first. A heuristic planner keeps to the budget too, but its paths need not
    be the cheapest.
    """

    def __call__(self, problem: Problem, count: int = 1) -> list[Path]:
        """Solve one problem."""
        ...


def path_of(problem: Problem, choices: Sequence[int]) -> Path:
    """The path of these choices (an option a stage), within the budget or not."""
    ends: list[int] = []
    for stage, choice in zip(problem.stages, choices, strict=True):
        start_ns = max((ends[source] for source in stage.sources), default=0)
        ends.append(start_ns + (int(stage.latency_ns[choice]) if stage.on_path else 0))
    cost = sum(
        float(stage.cost[choice]) * stage.probability for stage, choice in zip(problem.stages, choices, strict=True)
    )
    return Path(tuple(choices), max(ends, default=0), cost)


def check_path(problem: Problem, path: object, planner: str) -> Path:
    """The path with its figures computed again; ConfigError, which names the planner, unless it solves the problem."""
    if not isinstance(path, Path):
        raise ConfigError(f"planner {planner}: {type(path).__name__} in its list; expected Path")
    if len(path.choices) != len(problem.stages):
        raise ConfigError(
            f"planner {planner}: {len(path.choices)} choices; expected {len(problem.stages)}, one a stage"
        )
    for stage, choice in zip(problem.stages, path.choices, strict=True):
        if not isinstance(choice, int | np.integer) or not 0 <= choice < len(stage.cost):
            raise ConfigError(
                f"planner {planner}: stage {stage.name}: option {choice!r}; expected 0 to {len(stage.cost) - 1}"
            )
    found = path_of(problem, [int(choice) for choice in path.choices])
    if found.latency_ns > problem.budget_ns:
        raise ConfigError(
            f"planner {planner}: its path takes {ns_to_ms(found.latency_ns):.10g} ms; "
            f"expected at most {ns_to_ms(problem.budget_ns):.10g} ms"
        )
    return found


def check_problem(problem: Problem) -> None:
    """Raise ConfigError, which names the stage, if figures are missing or out of range."""
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
