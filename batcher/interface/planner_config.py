"""The planner that a scheduler goes by, as its spec and its journals have it."""

import enum

import msgspec


class Replan(enum.StrEnum):
    """When configurations are chosen again."""

    DISPATCH = "dispatch"
    """At every dispatch, by planners that can; the others plan again when rates, latencies or partitions change."""
    ONCE = "once"
    """Stages keep what the first plan at a rate gave them, until partitions or models change."""


class PlannerConfig(msgspec.Struct, frozen=True):
    """The planner `name` of `planner/registry.py`, which draws from `seed` if it is random.

    Planners that search are bounded by what takes about `search_ms` milliseconds on one core for each pipeline: work,
    not time, so that the same input gives the same plan.
    """

    name: str = "exact"
    replan: Replan = Replan.DISPATCH
    seed: int = 0
    search_ms: float = 1000.0
