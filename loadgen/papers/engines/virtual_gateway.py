"""A gateway's scheduler in virtual time, as experiments need it: any spec, and a record of how each request ended."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from sluice.batcher.drivers.simulated_machine import Service
from sluice.batcher.drivers.simulated_nodes import SimulatedNode
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CombineOutputs,
    DispatchBatch,
    LoadModel,
    Settlement,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    Confidences,
    FailureCause,
    PartitionReady,
    RequestArrived,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS

YOUNG_OBJECTS = 20_000
"""Objects that come to be before the collector of cyclic garbage looks at them."""

Tables = Mapping[str, Mapping[str, LatencyTable]]
"""Latency tables by partition and model."""


class EndedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request with the times at which it came and ended."""

    pipeline: str
    came_ns: int
    deadline_ns: int
    ended_ns: int
    outcome: Outcome

    @property
    def is_in_time(self) -> bool:
        """True if it was answered by its deadline."""
        return self.outcome.answered and self.ended_ns <= self.deadline_ns


class PlayedTraffic(msgspec.Struct, frozen=True):
    """All requests of a run in the order of their ends, and the loads by model."""

    requests: tuple[EndedRequest, ...]
    loads: dict[str, int]

    @property
    def in_time(self) -> float:
        """The part of all requests that were answered by their deadlines."""
        return self._part(sum(each.is_in_time for each in self.requests))

    @property
    def late(self) -> float:
        """The part of all requests that were answered after their deadlines."""
        return self._part(sum(each.outcome.answered and not each.is_in_time for each in self.requests))

    @property
    def failed(self) -> int:
        """The number of requests that failed."""
        return sum(each.outcome.name.startswith("FAILED") for each in self.requests)

    def latency_ms(self, percentile: float) -> float:
        """A percentile of the time to the answer, of the requests that were answered."""
        took_ns = sorted(each.ended_ns - each.came_ns for each in self.requests if each.outcome.answered)
        return took_ns[min(int(len(took_ns) * percentile / 100), len(took_ns) - 1)] / NS_PER_MS

    def _part(self, count: int) -> float:
        return count / len(self.requests) if self.requests else 0.0


class TabledService:
    """Batches take what the tables of their partitions say."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def batch_ns(self, batch: DispatchBatch) -> int:
        """The time that the partition takes for a batch."""
        return self._tables[batch.partition][batch.model].latency_ns(batch.run_rows)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        """The models report no confidences."""
        return ()

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        """Combiners report no confidences."""
        return ()


class _Record:
    """Takes down how requests end, and counts batches and loads."""

    def __init__(self, also: Callable[[int, AnyEvent | None, list[AnyDecision]], None] | None) -> None:
        self._also = also
        self.open: dict[int, tuple[int, RequestArrived]] = {}
        self.ended: list[EndedRequest] = []
        self.loads = Counter[str]()

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if self._also is not None:
            self._also(now_ns, event, decisions)
        if isinstance(event, RequestArrived):
            self.open[event.request] = now_ns, event
        for decision in decisions:
            if isinstance(decision, Settlement):
                came_ns, arrival = self.open.pop(decision.request)
                self.ended.append(
                    EndedRequest(arrival.pipeline, came_ns, arrival.deadline_ns, now_ns, decision.outcome)
                )
            elif isinstance(decision, LoadModel):
                self.loads[decision.model] += 1


class VirtualGateway:
    """One run of a scheduler with the product's own planner.

    The partitions in `holding` begin with those models of their `tables` (default: with all), and the others are loaded
    in `load_ns`. With `measures`, the links of the `nodes` are measured at the start. `observe` sees each step as well.
    Batches take what `service` says (default: what the `tables` say), and those that `fails` names are lost at their
    ends and run again.
    """

    def __init__(
        self,
        spec: SchedulerSpec,
        tables: Tables,
        *,
        holding: Mapping[str, Iterable[str]] | None = None,
        load_ns: Callable[[LoadModel], int] | None = None,
        nodes: Sequence[SimulatedNode] = (),
        measures: bool = True,
        service: Service | None = None,
        observe: Callable[[int, AnyEvent | None, list[AnyDecision]], None] | None = None,
        fails: Callable[[int], bool] | None = None,
    ) -> None:
        self._record = _Record(observe)
        self.simulator = Simulator(
            Scheduler(spec, LivePlanner()),
            service or TabledService(tables),
            self._record.observe,
            build_plan=build_plan,
            tables=tables,
            load_ns=load_ns,
            nodes=nodes,
            report=None if fails is None else partial(_failing, fails),
            measures=measures,
        )
        for partition in spec.partitions:
            held = tables[partition.name]
            if holding is not None:
                held = {model: held[model] for model in holding.get(partition.name, ())}
            self.simulator.at(0, PartitionReady(partition.name, dict(held)))

    def play(self, arrivals: Iterable[tuple[int, AnyEvent]]) -> PlayedTraffic:
        """Run until all requests have ended; arrivals are (time, event), ascending. To be called once."""
        with _seldom_collected():
            self.simulator.run(arrivals)
        record = self._record
        assert not record.open, "each request has an outcome"
        return PlayedTraffic(tuple(record.ended), dict(record.loads))


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let the collector of cyclic garbage look as seldom as in a server, and not at what is there already."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _failing(fails: Callable[[int], bool], time_ns: int, event: AnyEvent) -> AnyEvent:
    """Report that a batch which is to fail was lost, as if with its worker."""
    if isinstance(event, BatchCompleted) and fails(event.batch):
        return BatchFailed(event.batch, FailureCause.WORKER_LOST, "the invocation failed")
    return event
