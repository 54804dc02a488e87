"""Runs: one scenario against a live or a simulated target."""

import asyncio
import os
import platform
import sys
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import uvloop

from sluice.loadgen.mixes.requests import RequestTable
from sluice.loadgen.records.record import Record
from sluice.loadgen.records.server_metrics import Counters, ServerReport, metrics_between, scrape
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.records.validity import invalid_reasons
from sluice.loadgen.run.issuer import Issuer
from sluice.loadgen.run.plan import Plan, make_plan, nothing_measured
from sluice.loadgen.run.result import Predictions, RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.simulation.target import SIMULATED, SimulatedTarget
from sluice.loadgen.target.base import Target
from sluice.loadgen.target.open import open_target
from sluice.models.errors import ConfigError


def run(config: RunConfig) -> RunResult:
    """Run the configured scenario once; blocks until every query has ended.

    Raises `ConfigError` for a configuration that cannot be run, and `TargetUnreachable` when the target does not
    answer. An interrupt (Ctrl-C in the main thread) ends the run early and makes the result invalid.
    """
    _check(config)
    if config.target.startswith(SIMULATED):
        return _simulate(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_drive(config, _open(config)))


def _open(config: RunConfig) -> Target:
    return open_target(
        config.target,
        connections=config.connections,
        headers=config.headers,
        tls=config.tls,
        max_outstanding=config.max_outstanding,
    )


def _check(config: RunConfig) -> None:
    if not 0 < config.percentile < 100:
        raise ConfigError(f"--percentile: expected a number between 0 and 100, got {config.percentile:g}")
    if config.slo_ms is not None and not 0 < config.slo_ms < float("inf"):
        raise ConfigError(f"--slo-ms: expected a positive number, got {config.slo_ms}")
    for option, seconds in (("--warmup", config.warmup_s), ("--drain-timeout", config.drain_timeout_s)):
        if not seconds >= 0:  # also true for NaN
            raise ConfigError(f"{option}: expected at least 0, got {seconds:g}")
    if config.duration_s is not None and config.warmup_s >= config.duration_s:
        raise nothing_measured(f"--duration ({config.duration_s:g} s)", config.warmup_s)
    if config.seed < 0:
        raise ConfigError(f"--seed: expected at least 0, got {config.seed}")


def _simulate(config: RunConfig) -> RunResult:
    target = SimulatedTarget(config.target)
    plan = make_plan(config, [target.metadata(stream.model) for stream in config.streams])
    record, server = target.replay(plan.schedule, plan.requests, plan.slo_ns, config.seed, config.drain_timeout_s)
    return _result(config, plan, record, simulated=True, server=server, notes=target.notes)


async def _drive(config: RunConfig, target: Target) -> RunResult:
    known = {model: await target.metadata(model) for model in {stream.model: None for stream in config.streams}}
    metadata = [known[stream.model] for stream in config.streams]
    plan = make_plan(config, metadata)
    expected = plan.table.expected(plan.schedule.sample)
    keep_answers = expected is not None
    record = Record.of(plan.schedule, plan.slo_ns, keep_answers)
    issuer = Issuer(plan.schedule, record)
    try:
        await target.prepare(plan.requests, issuer, keep_answers)
        before = await asyncio.to_thread(_scrape, config) if config.metrics_url else None
    except BaseException:
        await target.close()
        raise
    cpu_ns = time.process_time_ns()
    record = await issuer.run(target, config.drain_timeout_s)
    cpu_ns = time.process_time_ns() - cpu_ns
    server = None if before is None else await _server_report(config, before, record)
    outputs = [config.output or each.outputs[0].name for each in metadata]
    return _result(
        config,
        plan,
        record,
        interrupted=issuer.interrupted,
        start_ns=issuer.start_ns,
        client_cpu_us_per_query=cpu_ns / 1e3 / max(1, len(record)),
        server=server,
        predictions=None if expected is None else _predictions(target, record, outputs, plan.table, expected.shape[1]),
        expected=None if expected is None else expected[: len(record)],
    )


async def _server_report(config: RunConfig, before: Counters, record: Record) -> ServerReport | None:
    try:
        return metrics_between(before, await asyncio.to_thread(_scrape, config))
    except ConfigError as error:
        # The figures of the run stay valid when the server dies under load.
        record.count_reason(str(error))
        return None


def _scrape(config: RunConfig) -> Counters:
    return scrape(config.metrics_url, config.headers, config.tls)


def _result(
    config: RunConfig,
    plan: Plan,
    record: Record,
    *,
    interrupted: bool = False,
    simulated: bool = False,
    start_ns: int = 0,
    client_cpu_us_per_query: float | None = None,
    server: ServerReport | None = None,
    predictions: Predictions | None = None,
    expected: Predictions | None = None,
    notes: tuple[str, ...] = (),
) -> RunResult:
    metrics = query_statistics(record, config.percentile, config.warmup_s)
    return RunResult(
        config=config,
        schedule_digest=plan.schedule.digest,
        record=record,
        metrics=metrics,
        invalid=invalid_reasons(metrics, config.slo_ms, config.percentile, interrupted),
        interrupted=interrupted,
        simulated=simulated,
        start_ns=start_ns,
        client_cpu_us_per_query=client_cpu_us_per_query,
        server=server,
        predictions=predictions,
        expected=expected,
        environment=_environment(),
        notes=notes,
    )


def _predictions(target: Target, record: Record, outputs: Sequence[str], table: RequestTable, rows: int) -> Predictions:
    """The classes that the answers have, (queries, rows), -1 for none; `outputs` names the output of each stream."""
    predictions = np.full((len(record), rows), -1, np.int64)
    for query, answer in enumerate(record.answers):
        stream = int(record.stream[query])
        samples = table.samples[stream]
        if answer is not None and samples.labels is not None:
            classes = class_numbers(target.decode(answer, outputs[stream]), samples.batched)
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


def _environment() -> dict[str, str]:
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "load_average": f"{os.getloadavg()[0]:.2f}",
    }
