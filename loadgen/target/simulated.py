"""Target `sim:FILE`: the gateway's own scheduler in virtual time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from batcher.build import build_spec, pipeline_key
from batcher.config import PartitionConfig, PipelineConfig
from batcher.decisions import (
    AnyDecision,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    RejectRequest,
)
from batcher.events import AnyEvent, BatchCompleted, BatchRevoked, PartitionReady, RequestArrived
from batcher.scheduler import Scheduler
from batcher.simulator import Simulator, Verdicts
from loadgen.record import Record, Status
from loadgen.samples import Samples
from loadgen.schedule import Schedule
from loadgen.seeds import generator
from loadgen.server_metrics import ServerSide, server_side
from loadgen.target.base import ModelMetadata
from loadgen.target.simulation_file import latency_table, read_simulation
from loadgen.target.v2 import wire_bytes
from models.errors import ConfigError
from models.pipeline import Pipeline, batch_key
from models.pipeline_check import single_model
from models.pipeline_memory import output_memory
from models.profile import LatencyTable
from models.slo import deadline_ns
from models.tensor import TensorSpec

SIMULATED = "sim:"
_EVEN_ODDS = 0.5


class SimulatedTarget:
    """One pipeline (or model) of a simulated gateway, where every partition holds all models."""

    def __init__(self, url: str, name: str) -> None:
        path = Path(url.removeprefix(SIMULATED))
        self._file, repository = read_simulation(path)
        specs = [entry.spec for entry in repository.models.values()]
        latest = {spec.name: single_model(spec) for spec in sorted(specs, key=lambda spec: spec.version)}
        served = latest | repository.pipelines
        if name not in served:
            reasons = [broken.reason for broken in repository.broken if broken.name == name]
            raise ConfigError(f"--model {name}: {path} serves {', '.join(sorted(served))}" + "".join(reasons))
        self.pipeline: Pipeline = served[name]
        kinds = {partition.name: f"cpu{partition.cores}" for partition in self._file.partitions}
        partitions = [PartitionConfig(partition, kind) for partition, kind in kinds.items()]
        self._spec = build_spec(
            specs,
            served.values(),
            partitions,
            limits=self._file.limits.config(),
            policies=self._file.policies(specs),
            default_policy=self._file.policy.config(),
        )
        self._memory = output_memory(self.pipeline, {spec.key: spec for spec in specs})
        by_kind = {
            f"cpu{cores}": {key: latency_table(self._file, entry, cores) for key, entry in repository.models.items()}
            for cores in {partition.cores for partition in self._file.partitions}
        }
        self._tables = {partition: by_kind[kind] for partition, kind in kinds.items()}

    def metadata(self) -> ModelMetadata:
        """Describe the model."""
        return ModelMetadata(*(self._on_the_wire(side) for side in (self.pipeline.inputs, self.pipeline.outputs)))

    def replay(
        self, schedule: Schedule, samples: Samples, slo_ms: float | None, seed: int
    ) -> tuple[Record, ServerSide]:
        """Play a schedule through a fresh scheduler; the same arguments give the same record."""
        key = pipeline_key(self.pipeline)
        config = next(config for config in self._spec.pipelines if config.name == key)
        counts = {model.key: len(model.verdicts) for model in self._spec.models}
        service = _Service(self._tables, counts, config, self._file.escalation.get(self.pipeline.name, {}), seed)
        observer = _Observer(Record.of(schedule), config)
        simulator = Simulator(Scheduler(self._spec), service, observer.observe)
        for partition, tables in self._tables.items():
            simulator.at(0, PartitionReady(partition, tables))
        simulator.run(self._arrivals(key, schedule, samples, slo_ms))
        return observer.record, observer.server_side(key)

    def _arrivals(
        self, key: str, schedule: Schedule, samples: Samples, slo_ms: float | None
    ) -> Iterator[tuple[int, RequestArrived]]:
        sizes = {sample: self._size(samples, sample) for sample in np.unique(schedule.sample).tolist()}
        budget_ns = deadline_ns(0, slo_ms, self.pipeline.slo_ms, None, self._file.default_slo_ms)
        variable = (tensor.name for tensor in self.pipeline.inputs if not tensor.fixed)
        shapes = batch_key((name, samples.inputs[name].shape[1:]) for name in variable)
        for query, (due_ns, sample) in enumerate(zip(schedule.due_ns.tolist(), schedule.sample.tolist(), strict=True)):
            rows, memory_bytes = sizes[sample]
            yield due_ns, RequestArrived(query, key, rows, due_ns + budget_ns, shapes, memory_bytes)

    def _size(self, samples: Samples, sample: int) -> tuple[int, int]:
        """Rows of a sample, and the bytes that a query with it takes on the server."""
        rows = samples.row_count(sample)
        input_bytes = sum(len(wire_bytes(array)) for array in samples.tensors(sample).values())
        return rows, input_bytes + self._memory.output_bytes(rows, input_bytes)

    def _on_the_wire(self, tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(t.name, t.datatype, self.pipeline.wire_shape(t)) for t in tensors)


class _Service:
    """How long batches take, from the tables, and how sure their answers are, by chance."""

    def __init__(
        self,
        tables: dict[str, dict[str, LatencyTable]],
        verdict_counts: dict[str, int],
        pipeline: PipelineConfig,
        escalation: dict[str, float],
        seed: int,
    ) -> None:
        self._tables = tables
        self._verdict_counts = verdict_counts
        self._curves = _confidence_curves(pipeline, escalation)
        self._rng = generator(seed, "verdicts")

    def batch_ns(self, batch: DispatchBatch) -> int:
        """The cell of the latency table."""
        return self._tables[batch.partition][batch.model].latency_ns(batch.rows)

    def batch_verdicts(self, batch: DispatchBatch) -> Verdicts:
        """Confidences of the members' rows, in order."""
        count = self._verdict_counts[batch.model]
        if not count:
            return ()
        parts = [self._verdicts(member.stage, member.rows) for member in batch.members]
        return tuple(
            tuple(
                confidence
                for part, member in zip(parts, batch.members, strict=True)
                for confidence in (part[verdict] if verdict < len(part) else (1.0,) * member.rows)
            )
            for verdict in range(count)
        )

    def combined_verdicts(self, combination: CombineOutputs) -> Verdicts:
        """Confidences of a combiner's rows."""
        return self._verdicts(combination.member.stage, combination.member.rows)

    def _verdicts(self, stage: int, rows: int) -> Verdicts:
        return tuple(
            tuple(np.interp(self._rng.random(rows), chances, levels).tolist())
            for chances, levels in self._curves.get(stage, ())
        )


Curve = tuple[list[float], list[float]]
"""Chances, ascending, and the confidence below which a row stays with that chance."""


def _confidence_curves(pipeline: PipelineConfig, escalation: dict[str, float]) -> dict[int, list[Curve]]:
    """By stage, one curve a verdict: the distribution of confidence under which every `when` is met as asked."""
    points: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for stage in pipeline.stages:
        if (when := stage.when) is not None:
            point = (when.below, escalation.get(stage.name, _EVEN_ODDS))
            points.setdefault(when.stage, {}).setdefault(when.verdict, []).append(point)
    curves: dict[int, list[Curve]] = {}
    for asked, verdicts in points.items():
        for verdict in range(max(verdicts) + 1):
            levels, chances = zip(*sorted(verdicts.get(verdict, [(_EVEN_ODDS, _EVEN_ODDS)])), strict=True)
            if list(chances) != sorted(chances):
                raise ConfigError(f"escalation: {pipeline.name}: a higher threshold cannot be met less often")
            curves.setdefault(asked, []).append(([0.0, *chances, 1.0], [0.0, *levels, 1.0]))
    return curves


class _Observer:
    """Fills a record from the steps of a simulation."""

    def __init__(self, record: Record, pipeline: PipelineConfig) -> None:
        self.record = record
        self._stages = [stage.name for stage in pipeline.stages]
        self._rows = [0] * len(self._stages)
        self._under_way: dict[int, DispatchBatch] = {}
        self._sizes: dict[tuple[str, str], tuple[int, float]] = {}
        record.sent_ns[:] = record.due_ns

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Take in one step."""
        if isinstance(event, BatchCompleted):
            self._completed(self._under_way.pop(event.batch))
        elif isinstance(event, BatchRevoked):
            del self._under_way[event.batch]
        for decision in decisions:
            match decision:
                case DispatchBatch():
                    self._under_way[decision.batch] = decision
                case CompleteRequest():
                    self._settle(decision.request, now_ns, Status.OK)
                case RejectRequest() | EvictRequest():
                    self._settle(decision.request, now_ns, Status.SHED, f"{decision.outcome}")
                case FailRequest() | CancelRequest():
                    self._settle(decision.request, now_ns, Status.ERROR, f"{decision.outcome}")
                case CombineOutputs():
                    self._rows[decision.member.stage] += decision.member.rows

    def server_side(self, pipeline: str) -> ServerSide:
        """Batches and stages, as a live server would report them."""
        return server_side(
            self._sizes, {(pipeline, stage): rows for stage, rows in zip(self._stages, self._rows, strict=True) if rows}
        )

    def _completed(self, batch: DispatchBatch) -> None:
        batches, rows = self._sizes.get((batch.model, batch.partition), (0, 0.0))
        self._sizes[batch.model, batch.partition] = (batches + 1, rows + batch.rows)
        for member in batch.members:
            self._rows[member.stage] += member.rows

    def _settle(self, query: int, now_ns: int, status: Status, reason: str = "") -> None:
        record = self.record
        record.done_ns[query] = now_ns
        record.status[query] = status
        if reason:
            record.count_reason(reason)
