"""Queries against a live target, driven by one process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.interim import InterimTest, PartialLooks
from sluice.loadgen.records.outputs import Outputs
from sluice.loadgen.records.progress import Watch, unwatched
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.run.issuer import Issuer, Start, start_at_once
from sluice.loadgen.run.plan import RunPlan
from sluice.loadgen.run.result import Predictions
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.target.base import Target
from sluice.loadgen.target.open import open_target
from sluice.models.errors import ConfigError, ServingError
from sluice.models.tensors.arrays import Array


@dataclass(frozen=True)
class Driven:
    """The queries of a plan after they were driven.

    `start_ns` is the start on the monotonic clock, `cpu_ns` the CPU time of the client from there. `cpu_share` and
    `baseline_lateness_ms` are the issuer's. `predictions` have shape (queries, rows), with -1 for a missing one; None
    without labels. `outputs` are those that the run keeps. `lost` has a sentence for each client process whose
    measurements were lost.
    """

    record: Record
    interrupted: bool
    start_ns: int
    cpu_ns: int
    cpu_share: float | None
    baseline_lateness_ms: float
    predictions: Predictions | None
    outputs: Outputs = field(default_factory=dict)
    lost: tuple[str, ...] = ()


def open_live(config: RunConfig) -> Target:
    """The live target of a run, not connected yet."""
    return open_target(
        config.target,
        connections=config.connections,
        headers=config.headers,
        tls=config.tls,
        max_outstanding=config.max_outstanding,
        path=config.path,
        explain_every=round(1 / config.explain_share) if config.explain_share else 0,
    )


async def read_metadata(config: RunConfig, target: Target) -> list[TargetModel]:
    """The metadata of the run's streams; raises as `Target.metadata` does, and `ConfigError` for an empty one."""
    known = {model: await target.metadata(model) for model in {stream.model: None for stream in config.streams}}
    for model, metadata in known.items():
        if not metadata.inputs or not metadata.outputs:
            raise ConfigError(f"--model {model}: the metadata of {config.target} has no inputs or no outputs")
    return [known[stream.model] for stream in config.streams]


async def model_changes(config: RunConfig, before: Sequence[TargetModel]) -> list[str]:
    """A sentence for each of the run's models that is another one than before; a target out of reach has none."""
    target = open_live(config)
    try:
        after = await read_metadata(config, target)
    except ServingError:  # the queries tell of it
        return []
    finally:
        await target.close()
    return [
        f"the target changed {stream.model} during the run: it was {_described(old)}, and is {_described(new)} now"
        for stream, old, new in zip(config.streams, before, after, strict=True)
        if old != new
    ]


def _described(model: TargetModel) -> str:
    tensors = ", ".join(f"{each.name} {each.datatype} {list(each.shape)}" for each in (*model.inputs, *model.outputs))
    return f"version {', '.join(model.versions)} with {tensors}" if model.versions else tensors


async def drive(
    config: RunConfig,
    target: Target,
    plan: RunPlan,
    start: Start = start_at_once,
    interim: InterimTest | PartialLooks | None = None,
    watch: Watch = unwatched,
    over: asyncio.Event | None = None,
) -> Driven:
    """Issue a plan's queries and wait for their answers; the target is closed at the end.

    `interim` is the test that may end the run early; so does `over`, once it is set. Raises `TargetUnreachable`, and
    `ConfigError` for an output that the answers do not have.
    """
    keeps_answers = plan.table.is_labelled or config.kept_outputs is not None
    record = Record.of(plan.schedule, plan.slo_ns, keeps_answers)
    kept = None if config.kept_outputs is None else config.kept_outputs.queries(len(record))
    # Labels need the answers of all queries.
    issuer = Issuer(
        record, plan.pacing, plan.schedule.cancel_ns, interim, None if plan.table.is_labelled else kept, over
    )
    try:
        await target.prepare(plan.requests, issuer, keeps_answers)
    except BaseException:
        await target.close()
        raise
    watch(issuer.counts)
    record = await issuer.run(target, config.drain_timeout_s, start)
    return Driven(
        record,
        issuer.interrupted,
        issuer.start_ns,
        issuer.cpu_ns,
        issuer.cpu_share,
        issuer.baseline_lateness_ms,
        _predictions(target, record, plan),
        _outputs(config, target, record, plan, kept),
    )


def _predictions(target: Target, record: Record, plan: RunPlan) -> Predictions | None:
    if not plan.table.is_labelled:
        return None
    predictions = no_predictions(len(record), plan)
    read, failure = 0, None
    for query, answer in enumerate(record.answers):
        stream = int(record.stream[query])
        samples = plan.table.samples[stream]
        if answer is None or samples.labels is None:
            continue
        try:
            classes = class_numbers(target.decode(answer, plan.outputs[stream]), samples.batched)
            predictions[query, : len(classes)] = classes
            read += 1
        except Exception as error:  # of whatever kind, it may not lose the other answers
            record.status[query] = Status.ERROR
            record.count_reason(f"unreadable answer: {error}")
            failure = failure or error
    if failure is not None and not read:
        raise ConfigError(f"no answer can be read: {failure}") from failure
    return predictions


def _outputs(
    config: RunConfig, target: Target, record: Record, plan: RunPlan, kept: frozenset[int] | None
) -> dict[int, dict[str, Array]]:
    if config.kept_outputs is None or kept is None:
        return {}
    return {
        query: {
            name: target.decode(answer, name)
            for name in config.kept_outputs.names or (plan.outputs[int(record.stream[query])],)
        }
        for query, answer in enumerate(record.answers)
        if answer is not None and query in kept
    }


def no_predictions(queries: int, plan: RunPlan) -> Predictions:
    """Predictions of queries without an answer."""
    return np.full((queries, plan.table.most_rows), -1, np.int64)


def class_numbers(output: npt.NDArray[np.generic], batched: bool) -> Predictions:
    """The class of each row: the output itself when it holds whole numbers, else the index of its largest score."""
    rows = output if batched else output[np.newaxis]
    if np.issubdtype(rows.dtype, np.integer):
        if rows.size == len(rows):
            return rows.reshape(-1).astype(np.int64)
    elif rows.ndim == 2 and rows.dtype != np.object_:
        return np.asarray(np.argmax(rows, axis=1), np.int64)
    raise ConfigError(f"--output: expected class numbers (rows,) or scores (rows, classes), got {rows.shape}")
