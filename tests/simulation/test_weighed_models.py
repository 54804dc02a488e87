"""Models without profiles that are larger than their files: once each has been loaded, memory is not exceeded again."""

from collections import Counter

import msgspec

from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CompleteRequest,
    DispatchBatch,
    LoadModel,
    UnloadModel,
)
from sluice.batcher.interface.events import AnyEvent, ModelLoaded, PartitionReady, RequestArrived
from sluice.batcher.interface.residency_config import Loading, ResidencyConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.measurement import ModelMemory
from tests.support.scheduling.builders import MS, ONE, S, model, spec_of
from tests.support.scheduling.services import WithoutConfidences

MIB = 1 << 20
FILE_MIB, TAKEN_MIB, ROOM_MIB = 10, 26, 100
KEYS = [f"m{number}" for number in range(30)]
ROUNDS = 5


class Weighed(Simulator):
    """Workers that measure the memory of their models; batches take 1 ms."""

    def at(self, time_ns: int, event: AnyEvent) -> None:
        if isinstance(event, ModelLoaded):
            event = msgspec.structs.replace(event, memory=ModelMemory((TAKEN_MIB - 2) * MIB, 2 * MIB))
        super().at(time_ns, event)


class Millisecond(WithoutConfidences):
    def batch_ns(self, batch: DispatchBatch) -> int:
        return MS


def test_a_model_that_takes_more_than_its_file_exceeds_no_memory_once_it_was_loaded() -> None:
    models = [msgspec.structs.replace(model(key, 1), memory_bytes=FILE_MIB * MIB) for key in KEYS]
    partitions = [PartitionConfig(name, "cpu1", memory_bytes=ROOM_MIB * MIB) for name in ("p0", "p1")]
    residency = ResidencyConfig(Loading.DEMAND, min_resident_ns=0, load_ns=10 * MS)
    scheduler = Scheduler(msgspec.structs.replace(spec_of(models, partitions=partitions), residency=residency))
    held: dict[str, set[str]] = {partition.name: set() for partition in partitions}
    loads: Counter[str] = Counter()
    most: Counter[bool] = Counter()
    answered = 0

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        nonlocal answered
        if isinstance(event, ModelLoaded):
            loads[event.model] += 1
        for decision in decisions:
            if isinstance(decision, LoadModel):
                held[decision.partition].add(decision.model)
            elif isinstance(decision, UnloadModel):
                held[decision.partition].remove(decision.model)
            elif isinstance(decision, CompleteRequest):
                answered += 1
        known = len(loads) == len(KEYS)
        most[known] = max(most[known], *(len(each) * TAKEN_MIB for each in held.values()))

    simulator = Weighed(
        scheduler,
        Millisecond(),
        observe,
        tables=dict.fromkeys(held, dict.fromkeys(KEYS, ONE)),
        load_ns=lambda _: 8 * MS,
    )
    for name in held:
        simulator.at(0, PartitionReady(name, {}))
    requests = enumerate(KEYS * ROUNDS)
    simulator.run(((1 + number) * 10 * MS, RequestArrived(number, key, 1, 100 * S)) for number, key in requests)
    assert answered == ROUNDS * len(KEYS)
    assert all(loads[key] > 1 for key in KEYS)
    # By their file sizes ten models would fit; the last unmeasured one may exceed the memory for a while.
    assert most[False] <= ROOM_MIB - FILE_MIB + TAKEN_MIB
    assert 3 * TAKEN_MIB == most[True] <= ROOM_MIB
