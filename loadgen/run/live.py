"""Queries against a live target, driven by one process."""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.interim import InterimTest
from sluice.loadgen.records.record import Record, objective_ns
from sluice.loadgen.records.samples import Samples
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
    `baseline_lateness_ms` are the issuer's. `predictions` have
    shape (queries, rows), with -1 for a missing one; None without labels.
    """

    record: Record
    interrupted: bool
    start_ns: int
    cpu_ns: int
    cpu_share: float | None
    baseline_lateness_ms: float
    predictions: Predictions | None


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


async def drive(
    config: RunConfig,
    target: Target,
    plan: Plan,
    output: str,
    start: Start = start_at_once,
    interim: InterimTest | None = None,
) -> Driven:
    """Issue a plan's queries and wait for their answers; the target is closed at the end.

    `output` is the one to compare with the labels, if there are any, and `interim` the test that may end the run early.
    Raises `TargetUnreachable`, and `ConfigError` for
    an output that the answers do not have.
    """
    keep_answers = plan.samples.labels is not None
    record = Record.of(plan.schedule, objective_ns(config.slo_ms), keep_answers)
    issuer = Issuer(record, plan.pacing, interim)
    try:
        await target.prepare(plan.requests, issuer, keep_answers)
    except BaseException:
        await target.close()
        raise
    cpu_ns = time.process_time_ns()
    record = await issuer.run(target, config.drain_timeout_s, start)
    cpu_ns = time.process_time_ns() - cpu_ns
    predictions = _predictions(target, record, output, plan.samples)
    return Driven(
        record,
        issuer.interrupted,
        issuer.start_ns,
        cpu_ns,
        issuer.cpu_share,
        issuer.baseline_lateness_ms,
        predictions,
    )


def _predictions(target: Target, record: Record, output: str, samples: Samples) -> Predictions | None:
    if samples.labels is None:
        return None
    predictions = np.full((len(record), samples.rows_per_query), -1, np.int64)
    for query, answer in enumerate(record.answers):
        if answer is not None:
            classes = class_numbers(target.decode(answer, output), samples.batched)
            predictions[query, : len(classes)] = classes
    return predictions


def class_numbers(output: npt.NDArray[np.generic], batched: bool) -> Predictions:
    """The class of each row: the output itself when it holds whole numbers, else the index of its largest score."""
    rows = output if batched else output[np.newaxis]
    if np.issubdtype(rows.dtype, np.integer):
        if rows.size == len(rows):
            return rows.reshape(-1).astype(np.int64)
    elif rows.ndim == 2 and rows.dtype != np.object_:
        return np.asarray(np.argmax(rows, axis=1), np.int64)
    raise ConfigError(f"--output: expected class numbers (rows,) or scores (rows, classes), got {rows.shape}")
