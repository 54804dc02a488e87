"""Models that contend for the memory of partitions, each requested at a rate, in virtual time."""

import random
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NamedTuple

import msgspec

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch, LoadModel
from sluice.batcher.interface.events import AnyEvent, PartitionLost, PartitionReady, RequestArrived
from sluice.batcher.interface.residency_config import Footprint, Loading, ResidencyConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import MS, ONE, S, model, spec_of
from tests.support.scheduling.services import WithoutConfidences

LOAD_NS = 50 * MS
SHORT_NS = 5 * MS
"""An objective that a loaded model meets, and that leaves no time for a load."""


class Traffic(NamedTuple):
    """Single-row requests for a model from `from_s` to `until_s`, with Poisson arrivals unless `even`."""

    key: str
    rate: float
    from_s: float = 0
    until_s: float = 20
    objective_ns: int = SHORT_NS
    even: bool = False


class Outcome(NamedTuple):
    """Outcome of the request that arrived at `at_ns`."""

    at_ns: int
    key: str
    served: bool


class Contention(WithoutConfidences):
    """A run on partitions with memory for one model each.

    `lost_s` gives, by name, when partitions are lost for good. `outcomes` are in order of arrival.
    """

    def __init__(
        self, traffic: Sequence[Traffic], partitions: int = 1, seed: int = 1, *, lost_s: dict[str, float] | None = None
    ) -> None:
        keys = sorted({each.key for each in traffic})
        models = [
            msgspec.structs.replace(
                model(key, 8), memory_bytes=1, footprints={"cpu1": Footprint(1, load_ns=LOAD_NS, table=ONE)}
            )
            for key in keys
        ]
        rooms = [PartitionConfig(f"p{number}", "cpu1", memory_bytes=1) for number in range(partitions)]
        spec = msgspec.structs.replace(spec_of(models, partitions=rooms), residency=ResidencyConfig(Loading.DEMAND))
        self.loads = 0
        self.scheduler = Scheduler(spec)
        self._arrivals: dict[int, tuple[int, str]] = {}
        self._served: set[int] = set()
        tables = {room.name: dict.fromkeys(keys, ONE) for room in rooms}
        simulator = Simulator(self.scheduler, self, self._observe, tables=tables, load_ns=lambda order: LOAD_NS)
        for room in rooms:
            simulator.at(0, PartitionReady(room.name, {}))
        for name, at_s in (lost_s or {}).items():
            simulator.at(int(at_s * S), PartitionLost(name, "it died"))
        generator = random.Random(seed)
        simulator.run(self._arrive(merge(*(times(each, random.Random(generator.random())) for each in traffic))))
        check_invariants(self.scheduler)
        self.outcomes = [
            Outcome(arrived_ns, key, request in self._served) for request, (arrived_ns, key) in self._arrivals.items()
        ]

    def served(self, key: str, from_s: float = 0, until_s: float = 1000) -> float:
        """The share of a model's requests in a period that were served; 1 without requests."""
        found = [each.served for each in self.outcomes if each.key == key and from_s * S <= each.at_ns < until_s * S]
        return sum(found) / len(found) if found else 1.0

    def _arrive(self, requests: Iterator[tuple[int, str, int]]) -> Iterator[tuple[int, AnyEvent]]:
        for number, (now_ns, key, objective_ns) in enumerate(requests):
            self._arrivals[number] = now_ns, key
            yield now_ns, RequestArrived(number, key, 1, now_ns + objective_ns)

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, LoadModel):
                self.loads += 1
            elif isinstance(decision, CompleteRequest):
                self._served.add(decision.request)

    def batch_ns(self, batch: DispatchBatch) -> int:
        return ONE.latency_ns(batch.rows)


def times(traffic: Traffic, generator: random.Random) -> Iterator[tuple[int, str, int]]:
    """Arrival time, model and objective of each request."""
    gap_s = 1 / traffic.rate
    now_s = traffic.from_s
    while (now_s := now_s + (gap_s if traffic.even else generator.expovariate(traffic.rate))) < traffic.until_s:
        yield int(now_s * S), traffic.key, traffic.objective_ns
