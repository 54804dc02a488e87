"""Regions of a pipeline, each with its front (the least cost within a time) and the choices that attain it."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from sluice.batcher.planner.fronts.pareto import DONE, Costs, Indices, Steps, Times, parallel, pareto, series, thinned
from sluice.batcher.planner.problem.problem import StageProblem


class Bounds(NamedTuple):
    """Fronts end at `horizon_ns` and have at most `max_points` points."""

    horizon_ns: int
    max_points: int

    def thinned(self, front: Steps) -> Steps:
        """The front, on a coarser grid where it has too many points."""
        keep = thinned(front.latency_ns, self.horizon_ns, self.max_points)
        return front if keep is None else Steps(front.latency_ns[keep], front.cost[keep])


class StageRegion(Protocol):
    """Stages that are entered together and left together: one stage, or regions in series or in parallel."""

    @property
    def quickest_ns(self) -> int:
        """The least latency of the front."""
        ...

    @property
    def front(self) -> Steps:
        """The least cost of the region within a time, made on first use."""
        ...

    def choose(self, within_ns: int, choices: list[int]) -> None:
        """Set the choices of the region's stages: the cheapest within a time not below `quickest_ns`, then quickest."""
        ...


class Leaf:
    """One stage. `latency_ns` (0 off the path) and `cost` (weighted by probability) are of all options."""

    def __init__(self, index: int, stage: StageProblem, bounds: Bounds) -> None:
        self.index = index
        self.cost: Costs = stage.cost if stage.probability == 1 else stage.cost * stage.probability
        if stage.on_path:
            self.latency_ns: Times = stage.latency_ns
            self._options: Indices = pareto(stage.latency_ns, self.cost)
        else:
            self.latency_ns = np.zeros_like(stage.latency_ns)
            self._options = np.lexsort((stage.latency_ns, self.cost))[:1]
        times = self.latency_ns[self._options]
        if (keep := thinned(times, bounds.horizon_ns, bounds.max_points)) is not None:
            self._options, times = self._options[keep], times[keep]
        self.front = Steps(times, self.cost[self._options])
        self.quickest_ns = int(times[0])

    def choose(self, within_ns: int, choices: list[int]) -> None:
        """As in `StageRegion`."""
        choices[self.index] = int(self._options[self.front.latency_ns.searchsorted(within_ns, "right") - 1])

    def take(self, option: int, choices: list[int]) -> None:
        """Set the choice to any option, on the front or not."""
        choices[self.index] = option


class Fixed:
    """A copy of a region whose choice is made elsewhere: every copy takes time, and one of them has the cost."""

    def __init__(self, latency_ns: int, cost: float) -> None:
        self.front = Steps(np.array([latency_ns]), np.array([cost]))
        self.quickest_ns = latency_ns

    def choose(self, within_ns: int, choices: list[int]) -> None:
        """Do nothing: the choice is made elsewhere."""


class SeriesRegion:
    """Regions in series."""

    def __init__(self, parts: Sequence[StageRegion], bounds: Bounds) -> None:
        self.parts = parts
        self._bounds = bounds

    @cached_property
    def rests(self) -> list[Steps]:
        """For each part the front of all parts after it."""
        rests = [DONE]
        for part in reversed(self.parts[1:]):
            rests.append(self._bounds.thinned(series(part.front, rests[-1], self._bounds.horizon_ns)))
        return rests[::-1]

    @cached_property
    def front(self) -> Steps:
        """As in `StageRegion`."""
        return self._bounds.thinned(series(self.parts[0].front, self.rests[0], self._bounds.horizon_ns))

    @property
    def quickest_ns(self) -> int:
        """As in `StageRegion`."""
        return self.parts[0].quickest_ns + int(self.rests[0].latency_ns[0])

    def choose(self, within_ns: int, choices: list[int]) -> None:
        """As in `StageRegion`: part after part, by the total cost of the part and the rest."""
        for part, rest in zip(self.parts, self.rests, strict=True):
            times, cost = part.front
            left = within_ns - times
            total = cost + rest.cost_within(left)
            best = np.flatnonzero(total == total.min())
            needed = rest.latency_ns[rest.latency_ns.searchsorted(left[best], "right") - 1]
            quickest = int((times[best] + needed).argmin())
            part.choose(int(times[best[quickest]]), choices)
            within_ns = int(needed[quickest])


class ParallelRegion:
    """Regions in parallel."""

    def __init__(self, parts: Sequence[StageRegion], bounds: Bounds) -> None:
        self.parts = parts
        self._bounds = bounds

    @cached_property
    def rests(self) -> list[Steps]:
        """For each part but the last the front of all parts listed after it."""
        rests = [self.parts[-1].front]
        for part in reversed(self.parts[1:-1]):
            rests.append(self._bounds.thinned(parallel(part.front, rests[-1])))
        return rests[::-1]

    @cached_property
    def front(self) -> Steps:
        """As in `StageRegion`."""
        return self._bounds.thinned(parallel(self.parts[0].front, self.rests[0]))

    @property
    def quickest_ns(self) -> int:
        """As in `StageRegion`."""
        return max(part.quickest_ns for part in self.parts)

    def choose(self, within_ns: int, choices: list[int]) -> None:
        """As in `StageRegion`: each part independently."""
        for part in self.parts:
            part.choose(within_ns, choices)
