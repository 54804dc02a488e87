"""The planner that a scheduler goes by, as its spec and its journals have it."""

import enum

import msgspec


class ServedPlanner(enum.StrEnum):
    """The planners that a server can go by; all but the first are from the literature."""

    EXACT = "exact"
    ESG = "esg"
    INFLESS = "infless"
    FAST_GSHARE = "fast_gshare"
    ORION = "orion"
    AQUATOPE = "aquatope"

    @property
    def by_share(self) -> bool:
        """True if it compares partitions by the share of the machine that they are."""
        return self not in (ServedPlanner.EXACT, ServedPlanner.ESG)


class Replan(enum.StrEnum):
    """When configurations are chosen again."""

    DISPATCH = "dispatch"
    """At every dispatch, by planners that can; the others plan again when rates, latencies or partitions change."""
    ONCE = "once"
    """Stages keep what the first plan at a rate gave them, until partitions or models change."""


class PlannerConfig(msgspec.Struct, frozen=True):
    """The planner `name` of `planner/registry.py`, which draws from `seed` if it is random.

    It may take `limit_ms` milliseconds for each pipeline. Searches are bounded by what takes about that long on one
    core: by work, not by time, so that the same input gives the same plan. A driver with a clock gives up plans that
    take longer.
    """

    name: str = ServedPlanner.EXACT.value
    replan: Replan = Replan.DISPATCH
    seed: int = 0
    limit_ms: float = 1000.0
