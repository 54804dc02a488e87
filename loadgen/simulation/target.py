"""The target `sim:FILE`: the gateway's own scheduler in virtual time."""

import math
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    RejectRequest,
)
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, BatchRevoked, PartitionReady, RequestArrived
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.spec_builder import build_spec, pipeline_key
from sluice.loadgen.records.record import Record, Status, objective_ns
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.records.server_metrics import ServerReport, server_report
from sluice.loadgen.simulation.paced_arrivals import PacedArrivals
from sluice.loadgen.simulation.service import (
    AnswerJitter,
    ServiceTimeDistribution,
    SlowdownFactors,
    StochasticService,
    TransportJitter,
)
from sluice.loadgen.simulation.simulation_file import HostSettings, latency_table, read_simulation
from sluice.loadgen.target.base import Request
from sluice.loadgen.target.v2 import wire_bytes
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.memory import output_memory
from sluice.models.pipelines.pipeline import Pipeline, batch_key
from sluice.models.slo import deadline_ns
from sluice.models.tensors.spec import TensorSpec
from sluice.models.units import NS_PER_S, ms_to_ns
from sluice.mps.partitions.partition import CpuPartition

SIMULATED = "sim:"

_Prepared = tuple[str, int, int, str, int]


class SimulatedTarget:
    """A simulated gateway whose partitions all hold every model.

    `notes` says what the simulation leaves out.
    """

    def __init__(self, url: str) -> None:
        self._path = path = Path(url.removeprefix(SIMULATED))
        self._file, repository = read_simulation(path)
        specs = [entry.spec for entry in repository.models.values()]
        latest = {spec.name: single_model(spec) for spec in sorted(specs, key=lambda spec: spec.version)}
        served = latest | repository.pipelines
        self._served: Mapping[str, Pipeline] = served
        self._broken = repository.broken
        kinds = {partition.name: f"cpu{partition.cores}" for partition in self._file.partitions}
        partitions = [
            PartitionConfig(
                each.name,
                kinds[each.name],
                self._file.prices.per_second(CpuPartition(each.name, tuple(range(each.cores)))),
            )
            for each in self._file.partitions
        ]
        self._spec = build_spec(
            specs,
            self._file.with_defaults(served.values()),
            partitions,
            limits=self._file.limits.config(),
            policies=self._file.policies(specs),
            default_policy=self._file.policy.config(),
        )
        self._models = {spec.key: spec for spec in specs}
        by_kind = {
            f"cpu{cores}": {key: latency_table(self._file, entry, cores) for key, entry in repository.models.items()}
            for cores in {partition.cores for partition in self._file.partitions}
        }
        self._tables = {partition: by_kind[kind] for partition, kind in kinds.items()}
        self._times = {
            spec.key: ServiceTimeDistribution(quantiles)
            for spec in specs
            if (quantiles := self._file.service_ms.get(spec.name)) is not None
        }
        self._pieces = {spec.key: self._file.pace.get(spec.name, ()) for spec in specs}
        self._host = (self._file.host or HostSettings()).config()
        self.notes: tuple[str, ...] = ()
        if self._file.host is None:
            self.notes = (
                f"{path}: no `host` section; gateway and transport count as nothing, so a live server is slower",
            )

    def metadata(self, model: str) -> TargetModel:
        """The metadata of a model or pipeline; raises `ConfigError` for one that is not served."""
        if model not in self._served:
            reasons = [broken.reason for broken in self._broken if broken.name == model]
            found = "; ".join(reasons) or _known_names(self._served, {broken.name for broken in self._broken})
            raise ConfigError(f"--model {model}: not served by {self._path}: {found}")
        pipeline = self._served[model]
        return TargetModel(_on_the_wire(pipeline, pipeline.inputs), _on_the_wire(pipeline, pipeline.outputs))

    def replay(
        self,
        schedule: Schedule,
        pacing: Pacing,
        requests: Mapping[int, Request],
        seed: int,
        drain_timeout_s: float,
    ) -> tuple[Record, ServerReport]:
        """Run a schedule through a fresh scheduler; the same arguments give the same record.

        `requests` has the request of each sample, all to one model. Queries without an answer `drain_timeout_s` after
        the last one was due are timeouts, as in live runs.
        """
        request = next(iter(requests.values()))
        pipeline = self._served[request.model]
        key = pipeline_key(pipeline)
        config = next(config for config in self._spec.pipelines if config.name == key)
        counts = {model.key: len(model.confidences) for model in self._spec.models}
        chances = self._file.escalation.get(pipeline.name, {})
        slowdowns = {key: SlowdownFactors(pieces, seed) for key, pieces in self._pieces.items()}
        service = StochasticService(self._tables, self._times, slowdowns, counts, config, chances, seed)
        prepared = {sample: self._arrival(pipeline, request) for sample, request in requests.items()}
        record = Record.of(schedule, objective_ns(request.slo_ms))
        arrivals = PacedArrivals(record, pacing, partial(_event, prepared))
        observer = _Observer(arrivals, config, AnswerJitter(self._file.ways_us, seed, len(record)))
        simulator = Simulator(
            Scheduler(self._spec, LivePlanner()),
            service,
            observer.observe,
            self._host,
            observer.answered,
            build_plan,
            self._tables,
            TransportJitter(self._file.strays_us, seed),
            nodes=[node.config() for node in self._file.nodes],
        )
        for partition, tables in self._tables.items():
            simulator.at(0, PartitionReady(partition, tables))
        drain_ns = drain_timeout_s * NS_PER_S
        simulator.run(arrivals, drain_ns)
        record = arrivals.record.head(arrivals.issued)
        _time_out(record, arrivals.last_ns + drain_ns, simulator.now_ns)
        return record, observer.server_report(key)

    def _arrival(self, pipeline: Pipeline, request: Request) -> _Prepared:
        """The key of the pipeline, and a request's rows, time until its deadline, batch key and memory."""
        budget_ns = deadline_ns(0, request.slo_ms, pipeline.slo_ms, None, self._file.default_slo_ms)
        # A live server sets the deadline when it has read the request.
        budget_ns += self._host.send_ns + self._host.receive_ns - ms_to_ns(self._file.network_ms)
        shapes = {
            name: array.shape[1:] if pipeline.batchable else array.shape for name, array in request.tensors.items()
        }
        variable = batch_key((tensor.name, shapes[tensor.name]) for tensor in pipeline.inputs if not tensor.fixed)
        rows = len(next(iter(request.tensors.values()))) if pipeline.batchable else 1
        input_bytes = sum(len(wire_bytes(array)) for array in request.tensors.values())
        memory = output_memory(pipeline, self._models)
        memory_bytes = input_bytes + memory.output_bytes(rows, input_bytes)
        return pipeline_key(pipeline), rows, budget_ns, variable, memory_bytes


def _event(prepared: Mapping[int, _Prepared], sample: int, query: int, leaves_ns: int) -> RequestArrived:
    key, rows, budget_ns, shapes, memory_bytes = prepared[sample]
    return RequestArrived(query, key, rows, leaves_ns + budget_ns, shapes, memory_bytes)


def _on_the_wire(pipeline: Pipeline, tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(t.name, t.datatype, pipeline.wire_shape(t)) for t in tensors)


def _time_out(record: Record, end_ns: float, now_ns: int) -> None:
    """Count the queries without an answer by the end as timeouts."""
    late = (record.status == Status.PENDING) | (record.done_ns > end_ns)
    record.status[late] = Status.TIMEOUT
    record.done_ns[late] = int(end_ns) if math.isfinite(end_ns) else now_ns


class _Observer:
    """Fills the record of the arrivals from the steps of a simulation."""

    def __init__(self, arrivals: PacedArrivals, pipeline: PipelineConfig, jitter: AnswerJitter) -> None:
        self._arrivals = arrivals
        self._jitter = jitter
        self._stages = [stage.name for stage in pipeline.stages]
        self._rows = [0] * len(self._stages)
        self._in_flight: dict[int, DispatchBatch] = {}
        self._sizes: dict[tuple[str, str], tuple[int, float]] = {}

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Record one step."""
        if isinstance(event, BatchCompleted):
            self._completed(self._in_flight.pop(event.batch))
        elif isinstance(event, BatchRevoked):
            del self._in_flight[event.batch]
        for decision in decisions:
            match decision:
                case DispatchBatch():
                    self._in_flight[decision.batch] = decision
                case CompleteRequest():
                    self._settle(decision.request, Status.OK)
                case RejectRequest() | EvictRequest():
                    self._settle(decision.request, Status.SHED, f"{decision.outcome}")
                case FailRequest() | CancelRequest():
                    self._settle(decision.request, Status.ERROR, f"{decision.outcome}")
                case CombineOutputs():
                    self._rows[decision.member.stage] += decision.member.rows

    def answered(self, query: int, done_ns: int) -> None:
        """Record the time at which the client has its answer."""
        self._arrivals.ended(query, done_ns + self._jitter.of(query))

    def server_report(self, pipeline: str) -> ServerReport:
        """Batches and stages as a live server reports them."""
        return server_report(
            self._sizes, {(pipeline, stage): rows for stage, rows in zip(self._stages, self._rows, strict=True) if rows}
        )

    def _completed(self, batch: DispatchBatch) -> None:
        batches, rows = self._sizes.get((batch.model, batch.partition), (0, 0.0))
        self._sizes[batch.model, batch.partition] = (batches + 1, rows + batch.rows)
        for member in batch.members:
            self._rows[member.stage] += member.rows

    def _settle(self, query: int, status: Status, reason: str = "") -> None:
        record = self._arrivals.record
        record.status[query] = status
        if reason:
            record.count_reason(reason)


def _known_names(served: Collection[str], broken: Collection[str]) -> str:
    known = f"it serves {', '.join(sorted(served)) or 'nothing'}"
    return f"{known}; broken: {', '.join(sorted(broken))}" if broken else known
