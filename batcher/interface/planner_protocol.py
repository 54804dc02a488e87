"""The protocols of planners: they build plans, and choose one stage's configuration again at every dispatch."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.plan_data import CostToGo, Observed, Plan

BuildPlans = Callable[[SchedulerSpec, Observed], Plan]
"""Builds a plan; a live gateway calls it beside its loop."""


class LiveOption(NamedTuple):
    """Batches of up to `rows` rows in group number `group` of the model: each takes `latency_ns` and costs `cost`."""

    group: int
    rows: int
    latency_ns: int
    cost: float


class Ranker(Protocol):
    """Ranks the options of one stage."""

    def rank(self, remaining_ns: int, rows: int, waits_ns: Sequence[int], least_rows: int) -> Sequence[int]:
        """The few cheapest options for which the pipeline ends within `remaining_ns`, the cheapest first.

        Only batches of `least_rows` rows or more count. `rows` rows wait: what an option costs a row is its cost over
        those that it takes of them. An option begins after `waits_ns[option.group]`. Counted is the option's cost of a
        row and the least of all that follows in the time that is left; of two that cost the same the quicker comes
        first.
        """
        ...


class Planner(Protocol):
    """Prepares a stage for being ranked."""

    def ranker(self, options: Sequence[LiveOption], rest: CostToGo) -> Ranker:
        """A ranker of these options, after which `rest` is still to be done."""
        ...
