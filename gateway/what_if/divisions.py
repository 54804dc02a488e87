"""Plans all pipelines of a deployment on several ways to divide the cores of a machine, and chooses one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.planner.stage_latency import RHO_MAX
from sluice.batcher.settings.spec_builder import pipeline_key
from sluice.gateway.what_if.answer import PlanAnswer
from sluice.gateway.what_if.pipeline_plan import PlanInput, Planning
from sluice.models.pipelines.pipeline import Pipeline
from sluice.mps.partitions.cpu import default_partitions, usable_cores
from sluice.mps.partitions.partition import Partition


class Division(NamedTuple):
    """Partitions with the plan of each pipeline on them, by name; each is planned as if it were alone."""

    partitions: tuple[Partition, ...]
    plans: Mapping[str, PlanAnswer]

    @property
    def busy(self) -> float:
        """The share of the partitions' time that all pipelines take with their best batches."""
        return sum(each.bottleneck.total_utilisation for each in self.plans.values())

    @property
    def is_feasible(self) -> bool:
        """True if every pipeline meets its objective, and all have time beside each other."""
        return self.busy < RHO_MAX and all(each.feasible for each in self.plans.values())

    @property
    def cost_per_s(self) -> float:
        """The cost of a second of all pipelines at their rates."""
        return sum(each.plan.cost_per_1000 / 1000 * each.rate for each in self.plans.values())

    def reasons(self) -> Iterator[str]:
        """Why it is not feasible, a sentence for each reason."""
        for name, each in self.plans.items():
            if (found := each.infeasible) is not None:
                nearest = [] if found.nearest_rate is None else [f"{found.nearest_rate:.4g} requests/s"]
                if found.nearest_slo_ms is not None:
                    nearest.append(f"an objective of {found.nearest_slo_ms:.3f} ms")
                hint = f"; possible instead: {' or '.join(nearest)}" if nearest else ""
                yield f"{name}: {found.reason}{hint}"
        if self.busy >= RHO_MAX and all(each.feasible for each in self.plans.values()):
            yield (
                f"together the pipelines take {self.busy:.0%} of the partitions' time with their best batches, "
                f"expected at most {RHO_MAX:.0%}"
            )


def core_divisions(least: int = 1) -> list[tuple[Partition, ...]]:
    """Divisions of the usable cores into equal partitions: one for each core first, then half as many, and so on.

    Only the first may have less than `least` of them.
    """
    count = len(usable_cores())
    divisions: list[tuple[Partition, ...]] = [default_partitions(count)]
    while count // 2 >= least:
        count //= 2
        divisions.append(default_partitions(count))
    return divisions


def plan_all(planning: Planning, loads: Mapping[str, PlanInput], pipelines: Iterable[Pipeline]) -> Division:
    """Plan each pipeline for its load, by name; raises as `Planning.plan`."""
    plans = {pipeline_key(each): planning.plan(each, loads[each.name]) for each in pipelines}
    return Division(planning.partitions, plans)


def choose(divisions: Sequence[Division]) -> Division:
    """The feasible division that costs least, the first one of equals; without any, the one that is the least busy."""
    feasible = [each for each in divisions if each.is_feasible]
    return min(feasible, key=lambda each: each.cost_per_s) if feasible else min(divisions, key=lambda each: each.busy)
