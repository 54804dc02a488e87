"""Many equal partitions: no stage waits for one that is kept for another batch while an equal one has nothing to do."""

import random
from collections.abc import Iterator

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, chain, model, spec_of
from tests.support.scheduling.services import WithoutConfidences

ROW_MS = {"a:1": 9, "b:1": 30, "c:1": 15, "d:1": 100}
TABLES = {
    key: LatencyTable.from_ms({rows: ms * (0.4 + 0.6 * rows) for rows in (1, 2, 4, 8)}) for key, ms in ROW_MS.items()
}
CHAINS = {"abc:1": ("a:1", "b:1", "c:1"), "bad:1": ("b:1", "a:1", "d:1")}
OWN_MS = {name: sum(ROW_MS[key] for key in keys) for name, keys in CHAINS.items()}
WITHIN = 1.3
"""Objectives, as multiples of the times that chains take by themselves."""
LOAD = 0.45
PARTITIONS = [f"cpu{number}" for number in range(48)]


class Times(WithoutConfidences):
    """Batches take what their tables say."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return TABLES[batch.model].latency_ns(batch.rows)


def arrivals(until_ns: int) -> Iterator[tuple[int, RequestArrived]]:
    draw, now_ns = random.Random(1), 0
    mean_ms = sum(OWN_MS.values()) / len(OWN_MS) / len(PARTITIONS) / LOAD
    for request in range(1 << 20):
        now_ns += int(draw.expovariate(1 / mean_ms) * MS)
        if now_ns > until_ns:
            return
        name = list(CHAINS)[request % len(CHAINS)]
        yield now_ns, RequestArrived(request, name, 1, now_ns + int(WITHIN * OWN_MS[name] * MS))


def test_chains_are_in_time_at_less_than_half_of_the_load() -> None:
    models, chains = [model(key) for key in ROW_MS], [chain(*keys, name=name) for name, keys in CHAINS.items()]
    scheduler = Scheduler(spec_of(models, chains, partitions=PARTITIONS))
    deadlines_ns: dict[int, int] = {}
    in_time: list[bool] = []

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, RequestArrived):
            deadlines_ns[event.request] = event.deadline_ns
        in_time.extend(now_ns <= deadlines_ns[each.request] for each in decisions if isinstance(each, CompleteRequest))

    simulator = Simulator(scheduler, Times(), observe)
    for name in PARTITIONS:
        simulator.at(0, PartitionReady(name, TABLES))
    simulator.run(arrivals(S))
    check_invariants(scheduler)
    assert sum(in_time) / len(deadlines_ns) > 0.97
