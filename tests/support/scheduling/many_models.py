"""Many models on few partitions: a seeded, skewed trace in virtual time, and its outcomes.

`python -m tests.support.scheduling.many_models` prints the figures of docs/operate/residency.md.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

import msgspec

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.decisions import (
    AnyDecision,
    DispatchBatch,
    LoadModel,
    Settlement,
    UnloadModel,
)
from sluice.batcher.interface.events import AnyEvent, ModelLoaded, ModelUnloaded, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Eviction, Footprint, Loading, ResidencyConfig
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, model, spec_of
from tests.support.scheduling.services import WithoutConfidences

TABLE = LatencyTable.from_ms({1: 2.6, 2: 4, 4: 6.3, 8: 10.3, 16: 18.2})
"""ResNet50 on a V100 (Clockwork, OSDI 2020)."""
LOAD_NS = 8_300_000
"""Time to copy the model to the GPU, from the same paper."""
MIB = 1 << 20
MODEL_BYTES = 102 * MIB
SLO_NS = 100 * MS


class Crowd(NamedTuple):
    """The number of models, the number that each partition holds (`held`), and their request rate.

    The n-th model is requested in proportion to n ** -skew; the `idle` further models are never requested.
    """

    models: int = 4000
    idle: int = 0
    partitions: int = 8
    held: int = 40
    rate: float = 800
    skew: float = 0.9
    requests: int = 8000
    seed: int = 1


class Outcomes(NamedTuple):
    """Outcomes of a run."""

    outcomes: Counter[Outcome]
    loads: int
    unloads: int
    most_bytes: int

    @property
    def attainment(self) -> float:
        return self.outcomes[Outcome.COMPLETED] / self.outcomes.total()


def spec_of_crowd(crowd: Crowd, residency: ResidencyConfig) -> SchedulerSpec:
    models = [
        msgspec.structs.replace(
            model(f"m{number}", 16),
            memory_bytes=MODEL_BYTES,
            footprints={"gpu": Footprint(MODEL_BYTES, load_ns=LOAD_NS, table=TABLE)},
        )
        for number in range(crowd.models + crowd.idle)
    ]
    memory = crowd.held * MODEL_BYTES
    partitions = [PartitionConfig(f"gpu{n}", "gpu", memory_bytes=memory) for n in range(crowd.partitions)]
    return msgspec.structs.replace(spec_of(models, partitions=partitions), residency=residency)


def arrivals(crowd: Crowd) -> Iterator[tuple[int, AnyEvent]]:
    """Poisson arrivals of single rows; popularity is independent of the order of the models."""
    generator = random.Random(crowd.seed)
    order = list(range(crowd.models))
    generator.shuffle(order)
    weights = list(accumulate((rank + 1) ** -crowd.skew for rank in range(crowd.models)))
    now_ns = MS
    for request in range(crowd.requests):
        now_ns += int(generator.expovariate(crowd.rate) * S)
        (key,) = generator.choices(order, cum_weights=weights)
        yield now_ns, RequestArrived(request, f"m{key}", 1, now_ns + SLO_NS)


class Gpus(WithoutConfidences):
    """Batches take what the table says."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return TABLE.latency_ns(batch.rows)


def run_crowd(
    crowd: Crowd, residency: ResidencyConfig, scheduler_of: Callable[[SchedulerSpec], Scheduler] | None = None
) -> Outcomes:
    """Run the trace on empty partitions; asserts that every request has exactly one outcome."""
    spec = spec_of_crowd(crowd, residency)
    scheduler = Scheduler(spec, LivePlanner()) if scheduler_of is None else scheduler_of(spec)
    outcomes: dict[int, Outcome] = {}
    counts: Counter[type[AnyDecision]] = Counter()
    held: dict[str, set[str]] = {}
    most = 0

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        nonlocal most
        if isinstance(event, ModelLoaded):
            held[event.partition].add(event.model)
            most = max(most, len(held[event.partition]) * MODEL_BYTES)
        elif isinstance(event, ModelUnloaded):
            held[event.partition].remove(event.model)
        for decision in decisions:
            counts[type(decision)] += 1
            if isinstance(decision, Settlement):
                assert decision.request not in outcomes, f"request {decision.request} has two outcomes"
                outcomes[decision.request] = decision.outcome

    tables = {partition.name: {each.key: TABLE for each in spec.models} for partition in spec.partitions}
    simulator = Simulator(scheduler, Gpus(), observe, tables=tables, load_ns=lambda order: LOAD_NS)
    for partition in spec.partitions:
        held[partition.name] = set()
        simulator.at(0, PartitionReady(partition.name, {}))
    simulator.run(arrivals(crowd))
    check_invariants(scheduler)
    assert sorted(outcomes) == list(range(crowd.requests)), "a request has no outcome"
    return Outcomes(Counter(outcomes.values()), counts[LoadModel], counts[UnloadModel], most)


ON_DEMAND = ResidencyConfig(Loading.DEMAND)
WITHOUT_EVICTION = ResidencyConfig(Loading.DEMAND, Eviction.NONE)


def main() -> int:
    """Print a table of attainment, rejections and loads, with and without eviction, by skew and rate."""
    print("| skew | requests a second | eviction | in time | refused | loads |")
    print("|---|---|---|---|---|---|")
    for skew, rate in ((0.5, 800), (0.9, 800), (0.9, 1600), (1.2, 800)):
        crowd = Crowd(skew=skew, rate=rate)
        for residency in (WITHOUT_EVICTION, ON_DEMAND):
            run = run_crowd(crowd, residency)
            refused = sum(count for outcome, count in run.outcomes.items() if outcome.startswith("rejected"))
            shares = f"{run.attainment:.1%} | {refused / crowd.requests:.1%}"
            print(
                f"| {skew} | {rate} | `{residency.eviction}` | {shares} | {run.loads} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
