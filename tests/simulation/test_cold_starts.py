"""Cold starts of chains in virtual time: a request waits for one load, not one a stage (Xanadu, Middleware 2020)."""

import msgspec
import pytest

from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch, LoadModel
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.interface.residency_config import Footprint, Loading, Prewarm, ResidencyConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, chain, model, spec_of
from tests.support.scheduling.services import WithoutConfidences

RUN_NS, LOAD_NS = S // 2, S
HALF_A_SECOND = LatencyTable.from_ms({1: RUN_NS / MS})


class Halves(WithoutConfidences):
    """Every batch takes half a second."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return RUN_NS


def cold_chain(stages: int, prewarm: Prewarm) -> tuple[int, dict[str, int]]:
    """Latency of a request to a chain without loaded models, and the idle time of each model before its first batch."""
    keys = [f"s{number}" for number in range(stages)]
    models = [
        msgspec.structs.replace(
            model(key, 1), memory_bytes=1, footprints={"cpu1": Footprint(1, load_ns=LOAD_NS, table=HALF_A_SECOND)}
        )
        for key in keys
    ]
    partitions = [PartitionConfig(f"p{number}", "cpu1", memory_bytes=1) for number in range(stages)]
    spec = spec_of(models, (chain(*keys),), partitions=partitions)
    residency = ResidencyConfig(Loading.DEMAND, prewarm=prewarm, min_resident_ns=10 * S)
    ordered: dict[str, int] = {}
    waited: dict[str, int] = {}
    done: list[int] = []

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, LoadModel):
                ordered[decision.model] = now_ns
            elif isinstance(decision, DispatchBatch):
                waited[decision.model] = now_ns - ordered[decision.model] - LOAD_NS
            elif isinstance(decision, CompleteRequest):
                done.append(now_ns)

    scheduler = Scheduler(msgspec.structs.replace(spec, residency=residency))
    tables = {partition.name: dict.fromkeys(keys, HALF_A_SECOND) for partition in partitions}
    simulator = Simulator(scheduler, Halves(), observe, tables=tables, load_ns=lambda order: LOAD_NS)
    for partition in partitions:
        simulator.at(0, PartitionReady(partition.name, {}))
    simulator.at(0, RequestArrived(1, "chain:1", 1, 100 * S))
    simulator.run()
    (done_ns,) = done
    return done_ns, waited


@pytest.mark.parametrize("stages", [1, 2, 5, 10])
def test_a_chain_takes_one_cold_start_however_long_it_is(stages: int) -> None:
    runs_ns = stages * RUN_NS
    off_ns, _ = cold_chain(stages, Prewarm.OFF)
    assert (off_ns - runs_ns) / LOAD_NS == pytest.approx(stages, abs=0.01)
    just_in_time_ns, _ = cold_chain(stages, Prewarm.JIT)
    assert (just_in_time_ns - runs_ns) / LOAD_NS == pytest.approx(1, abs=0.01)


def test_just_in_time_models_hardly_lie_idle_before_they_run() -> None:
    _, just_in_time = cold_chain(10, Prewarm.JIT)
    _, speculative = cold_chain(10, Prewarm.SPECULATIVE)
    assert sum(speculative.values()) == pytest.approx(sum(stage * RUN_NS for stage in range(10)), rel=0.01)
    assert sum(just_in_time.values()) <= 0.05 * sum(speculative.values())
