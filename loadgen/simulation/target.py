"""The target `sim:FILE`: the gateway's own scheduler in virtual time."""

import math
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

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
    Member,
    RejectRequest,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchRevoked,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.planner import planner_settings
from sluice.batcher.settings.spec_builder import build_spec, check_competition, check_strictness, pipeline_key
from sluice.loadgen.records.interim import InterimTest
from sluice.loadgen.records.progress import Watch, unwatched
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.records.server_metrics import ServerReport, server_report
from sluice.loadgen.simulation.activity import SimulatedActivity
from sluice.loadgen.simulation.paced_arrivals import PacedArrivals
from sluice.loadgen.simulation.service import (
    AnswerJitter,
    ServiceTimeDistribution,
    SlowdownFactors,
    StochasticService,
    TransportJitter,
)
from sluice.loadgen.simulation.simulation_file import HostSettings, latency_table, read_simulation
from sluice.loadgen.target.base import TargetRequest
from sluice.loadgen.target.v2 import wire_bytes
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.memory import output_memory
from sluice.models.pipelines.pipeline import REQUEST, Pipeline, batch_key
from sluice.models.slo import deadline_ns
from sluice.models.spec import public_key
from sluice.models.tensors.spec import TensorSpec
from sluice.models.units import NS_PER_S, ms_to_ns
from sluice.mps.partitions.partition import CpuPartition

SIMULATED = "sim:"
# Module constants, because looking up a member of an enum is slow (see `sluice.batcher.scheduler.scheduler`).
OK, SHED, ERROR, CANCELLED = Status.OK, Status.SHED, Status.ERROR, Status.CANCELLED


class Replay(NamedTuple):
    """The queries of a simulated run, and the batches of the simulated server."""

    record: Record
    server: ServerReport
    interrupted: bool


class SimulatedTarget:
    """A simulated gateway whose partitions all hold every model.

    `notes` says what the simulation leaves out.
    """

    def __init__(self, url: str, policy_file: str = "") -> None:
        self._path = path = Path(url.removeprefix(SIMULATED))
        self._file, repository = read_simulation(path, policy_file)
        specs = [entry.spec for entry in repository.models.values()]
        latest = {spec.name: single_model(spec) for spec in sorted(specs, key=lambda spec: spec.version)}
        served = latest | repository.pipelines
        self._served: Mapping[str, Pipeline] = served
        self._broken = repository.broken
        kinds = {partition.name: f"cpu{partition.cores}" for partition in self._file.partitions}
        cores = sum(each.cores for each in self._file.partitions)
        partitions = [
            PartitionConfig(
                each.name,
                kinds[each.name],
                self._file.prices.per_second(CpuPartition(each.name, tuple(range(each.cores)))),
                each.cores / cores,
            )
            for each in self._file.partitions
        ]
        self._spec = build_spec(
            specs,
            self._file.with_defaults(served.values()),
            partitions,
            limits=self._file.limits.config(),
            policies=self._file.policies(specs),
            instances=self._file.instance_configs(specs),
            default_policy=self._file.policy.config(),
            planner=planner_settings(self._file.planner).config(),
        )
        check_competition(self._spec.pipelines, self._spec.partitions)
        check_strictness(self._file.strict_pipelines(served.values()), self._spec)
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
        requests: Mapping[int, TargetRequest],
        slo_ns: npt.NDArray[np.int64],
        seed: int,
        drain_timeout_s: float,
        interim: InterimTest | None = None,
        watch: Watch = unwatched,
    ) -> Replay:
        """Run a schedule through a fresh scheduler; the same arguments give the same record.

        `requests` has the requests that the schedule names, and `slo_ns` the objective of each query, (queries,).
        Queries without an answer `drain_timeout_s` after the last one was due are timeouts, as in live runs. `interim`
        may end the run before its schedule does, and so may an interrupt in the main thread: the queries that have left
        by then are played to their ends.
        """
        served = [self._served[model] for model in {request.model: None for request in requests.values()}]
        keys = [pipeline_key(pipeline) for pipeline in served]
        configs = [next(config for config in self._spec.pipelines if config.name == key) for key in keys]
        places = {pipeline.name: place for place, pipeline in enumerate(served)}
        pipeline_of = _pipeline_of(schedule, {number: places[each.model] for number, each in requests.items()})
        counts = {model.key: len(model.confidences) for model in self._spec.models}
        chances = {key: self._file.escalation.get(each.name, {}) for key, each in zip(keys, served, strict=True)}
        slowdowns = {key: SlowdownFactors(pieces, seed) for key, pieces in self._pieces.items()}
        service = StochasticService(self._tables, self._times, slowdowns, counts, configs, chances, pipeline_of, seed)
        prepared = {number: self._arrival(request) for number, request in requests.items()}
        record = Record.of(schedule, slo_ns)
        give_up = None if schedule.cancel_ns is None else schedule.cancel_ns.tolist()

        def arrival(sample: int, query: int, leaves_ns: int) -> RequestArrived:
            each = prepared[sample]
            if give_up is not None and (after_ns := give_up[query % len(give_up)]) >= 0:
                # At the instant of the arrival it would come before it.
                simulator.at(leaves_ns + self._host.send_ns + max(1, after_ns), RequestCancelled(query))
            return msgspec.structs.replace(
                each,
                request=query,
                deadline_ns=leaves_ns + each.deadline_ns,
                not_before_ns=each.not_before_ns and leaves_ns + each.not_before_ns,
            )

        arrivals = PacedArrivals(record, pacing, arrival)
        jitter = AnswerJitter(self._file.ways_us, seed, len(record))
        activity = SimulatedActivity({each.name: each.price for each in self._spec.partitions})
        observer = _Observer(arrivals, configs, pipeline_of, jitter, give_up, activity)
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
        with _on_interrupt(arrivals.stop):
            watch(arrivals.counts)
            simulator.run(arrivals if interim is None else _until_decided(arrivals, interim), drain_ns)
        record = arrivals.record.head(arrivals.issued)
        _time_out(record, arrivals.last_ns + drain_ns, simulator.now_ns)
        return Replay(record, observer.server_report(), arrivals.stopped)

    def _arrival(self, request: TargetRequest) -> RequestArrived:
        """The arrival of a request that leaves the client at time 0; raises `ConfigError` where a server refuses it."""
        pipeline = self._served[request.model]
        self._check(request, pipeline)
        budget_ns = deadline_ns(0, request.slo_ms, pipeline.slo_ms, None, self._file.default_slo_ms)
        # A live server sets the deadline when it has read the request.
        read_ns = self._host.send_ns + self._host.receive_ns
        start_after_ns = ms_to_ns(request.start_after_ms)
        budget_ns += read_ns + start_after_ns - ms_to_ns(self._file.network_ms)
        shapes = {
            name: array.shape[1:] if pipeline.batchable else array.shape for name, array in request.tensors.items()
        }
        variable = batch_key((tensor.name, shapes[tensor.name]) for tensor in pipeline.inputs if not tensor.fixed)
        rows = len(next(iter(request.tensors.values()))) if pipeline.batchable else 1
        input_bytes = sum(len(wire_bytes(array)) for array in request.tensors.values())
        memory = output_memory(pipeline, self._models)
        memory_bytes = input_bytes + memory.output_bytes(rows, input_bytes)
        return RequestArrived(
            0,
            pipeline_key(pipeline),
            rows,
            budget_ns,
            variable,
            memory_bytes,
            request.max_cost,
            request.priority,
            min_accuracy=request.min_accuracy,
            not_before_ns=read_ns + start_after_ns if start_after_ns else 0,
        )

    def _check(self, request: TargetRequest, pipeline: Pipeline) -> None:
        """Raise ConfigError for an accuracy that no model has, or one sent ahead to models that begin at once."""
        families = [stage for stage in pipeline.stages if stage.accuracies]
        best = min((stage.accuracies[0] for stage in families), default=0.0)
        if request.min_accuracy > best:
            most = f"at most {best:g}, the best of {pipeline.name}" if families else f"none for {pipeline.name}"
            raise ConfigError(f"min_accuracy: expected {most}, got {request.min_accuracy:g}")
        if not request.start_after_ms:
            return
        models = {model.key: model for model in self._spec.models}
        for stage in pipeline.stages:
            is_first = stage.when is None and all(source.stage == REQUEST for source in stage.inputs.values())
            if is_first and stage.model is not None and models[stage.model].instances is None:
                raise ConfigError(
                    f"start_after_ms: expected a model with an instance policy, and {public_key(stage.model)} has none"
                )


def _pipeline_of(schedule: Schedule, places: Mapping[int, int]) -> Callable[[int], int]:
    """The place of a query's pipeline, by those of the requests; a closed loop plays the schedule again and again."""
    if not any(places.values()):
        return lambda query: 0
    samples = schedule.sample.tolist()
    return lambda query: places[samples[query % len(samples)]]


@contextmanager
def _on_interrupt(stop: Callable[[], object]) -> Iterator[None]:
    """Have the first interrupt call `stop`, where this is the main thread; a second one raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _until_decided(arrivals: PacedArrivals, interim: InterimTest) -> Iterator[tuple[int, RequestArrived]]:
    """The arrivals until a look at the record ends the run; the simulator draws one ahead of the time that it is at."""
    simulated_ns = 0
    for due_ns, event in arrivals:
        while interim.next_look_ns <= simulated_ns:
            interim.look(arrivals.record, int(interim.next_look_ns))
        if interim.decided is not None:
            return
        yield due_ns, event
        simulated_ns = due_ns


def _on_the_wire(pipeline: Pipeline, tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(t.name, t.datatype, pipeline.wire_shape(t)) for t in tensors)


def _time_out(record: Record, end_ns: float, now_ns: int) -> None:
    """Count the queries without an answer by the end as timeouts."""
    late = (record.status == Status.PENDING) | (record.done_ns > end_ns)
    record.status[late] = Status.TIMEOUT
    record.done_ns[late] = int(end_ns) if math.isfinite(end_ns) else now_ns


class _Observer:
    """Fills the record of the arrivals from the steps of a simulation."""

    def __init__(
        self,
        arrivals: PacedArrivals,
        pipelines: Sequence[PipelineConfig],
        pipeline_of: Callable[[int], int],
        jitter: AnswerJitter,
        give_up: Sequence[int] | None,
        activity: SimulatedActivity,
    ) -> None:
        self._arrivals = arrivals
        self._activity = activity
        self._pipelines = pipelines
        self._pipeline_of = pipeline_of
        self._jitter = jitter
        self._give_up = give_up
        self._rows = [[0] * len(pipeline.stages) for pipeline in pipelines]
        self._in_flight: dict[int, DispatchBatch] = {}
        self._sizes: dict[tuple[str, str], tuple[int, float]] = {}

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Record one step."""
        if isinstance(event, RequestArrived):
            self._activity.arrived(event.request, now_ns)
        elif isinstance(event, BatchCompleted):
            batch = self._in_flight.pop(event.batch)
            self._activity.completed(batch, event, now_ns)
            self._completed(batch)
        elif isinstance(event, BatchRevoked):
            self._activity.revoked(event.batch)
            del self._in_flight[event.batch]
        for decision in decisions:
            if isinstance(decision, CompleteRequest):  # most are
                self._settle(decision.request, OK)
            elif isinstance(decision, DispatchBatch):
                self._in_flight[decision.batch] = decision
                self._activity.dispatched(decision.batch, now_ns)
            elif isinstance(decision, RejectRequest | EvictRequest):
                self._settle(decision.request, SHED, f"{decision.outcome}")
            elif isinstance(decision, FailRequest):
                self._settle(decision.request, ERROR, f"{decision.outcome}")
            elif isinstance(decision, CancelRequest):
                self._settle(decision.request, CANCELLED)
            elif isinstance(decision, CombineOutputs):
                self._count(decision.member)

    def answered(self, query: int, done_ns: int) -> None:
        """Record the time at which the client has its answer, or at which it gave the query up, if that is earlier."""
        end_ns = done_ns + self._jitter.of(query)
        if self._give_up is not None and (after_ns := self._give_up[query % len(self._give_up)]) >= 0:
            given_up_ns = int(self._arrivals.record.sent_ns[query]) + after_ns
            if given_up_ns < end_ns:
                self._settle(query, CANCELLED)
                end_ns = given_up_ns
        self._arrivals.answered(query, end_ns)

    def server_report(self) -> ServerReport:
        """Batches and stages as a live server reports them."""
        stages = {
            (pipeline.name, stage.name): rows
            for pipeline, counts in zip(self._pipelines, self._rows, strict=True)
            for stage, rows in zip(pipeline.stages, counts, strict=True)
            if rows
        }
        report = server_report(self._sizes, stages)
        return msgspec.structs.replace(report, models=self._activity.report(), cost=self._activity.cost or None)

    def _completed(self, batch: DispatchBatch) -> None:
        batches, rows = self._sizes.get((batch.model, batch.partition), (0, 0.0))
        self._sizes[batch.model, batch.partition] = (batches + 1, rows + batch.rows)
        for member in batch.members:
            self._count(member)

    def _count(self, member: Member) -> None:
        self._rows[self._pipeline_of(member.request)][member.stage] += member.rows

    def _settle(self, query: int, status: Status, reason: str = "") -> None:
        self._activity.ended(query)
        self._arrivals.settled(query, status)
        if reason:
            self._arrivals.record.count_reason(reason)


def _known_names(served: Collection[str], broken: Collection[str]) -> str:
    known = f"it serves {', '.join(sorted(served)) or 'nothing'}"
    return f"{known}; broken: {', '.join(sorted(broken))}" if broken else known
