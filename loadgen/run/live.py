"""Queries against a live target, driven by one process."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.interim import InterimTest
from sluice.loadgen.records.progress import Watch, unwatched
from sluice.loadgen.records.record import Record
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.run.issuer import Issuer, Start, start_at_once
from sluice.loadgen.run.plan import Plan
from sluice.loadgen.run.result import Predictions
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.target.base import Target
from sluice.loadgen.target.open import open_target
from sluice.models.errors import ConfigError


@dataclass(frozen=True)
class Driven:
    """The queries of a plan after they were driven.

    `start_ns` is the start on the monotonic clock, `cpu_ns` the CPU time of the client from there. `cpu_share` and
    `baseline_lateness_ms` are the issuer's. `predictions` have shape (queries, rows), with -1 for a missing one; None
    without labels. `lost` has a sentence for each client process whose measurements were lost.
    """

    record: Record
    interrupted: bool
    start_ns: int
    cpu_ns: int
    cpu_share: float | None
    baseline_lateness_ms: float
    predictions: Predictions | None
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
    )


async def read_metadata(config: RunConfig, target: Target) -> list[TargetModel]:
    """The metadata of the run's streams; raises as `Target.metadata` does."""
    known = {model: await target.metadata(model) for model in {stream.model: None for stream in config.streams}}
    return [known[stream.model] for stream in config.streams]


async def drive(
    config: RunConfig,
    target: Target,
    plan: Plan,
    start: Start = start_at_once,
    interim: InterimTest | None = None,
    watch: Watch = unwatched,
) -> Driven:
    """Issue a plan's queries and wait for their answers; the target is closed at the end.

    `interim` is the test that may end the run early. Raises `TargetUnreachable`, and `ConfigError` for an output that
    the answers do not have.
    """
    record = Record.of(plan.schedule, plan.slo_ns, plan.table.is_labelled)
    issuer = Issuer(record, plan.pacing, plan.schedule.cancel_ns, interim)
    try:
        await target.prepare(plan.requests, issuer, plan.table.is_labelled)
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
    )


def _predictions(target: Target, record: Record, plan: Plan) -> Predictions | None:
    if not plan.table.is_labelled:
        return None
    predictions = no_predictions(len(record), plan)
    for query, answer in enumerate(record.answers):
        stream = int(record.stream[query])
        samples = plan.table.samples[stream]
        if answer is not None and samples.labels is not None:
            classes = class_numbers(target.decode(answer, plan.outputs[stream]), samples.batched)
            predictions[query, : len(classes)] = classes
    return predictions


def no_predictions(queries: int, plan: Plan) -> Predictions:
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
