"""MLPerf's Server scenario: queries with Poisson (or other) arrivals, against a live or a simulated target."""

import asyncio
import os
import platform
import sys
import time

import numpy as np
import numpy.typing as npt
import uvloop

from sluice.loadgen.records.interim import Decision, InterimTest
from sluice.loadgen.records.record import Record
from sluice.loadgen.records.samples import Samples, TargetModel, load_samples
from sluice.loadgen.records.server_metrics import Counters, ServerReport, metrics_between, scrape
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.records.validity import invalid_reasons
from sluice.loadgen.run.issuer import Issuer
from sluice.loadgen.run.result import Predictions, RunConfig, RunResult
from sluice.loadgen.simulation.target import SIMULATED, SimulatedTarget
from sluice.loadgen.target.base import Target
from sluice.loadgen.target.http import HttpTarget
from sluice.loadgen.traffic.schedule import Schedule, server_schedule
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

_FIRST_QUERIES = 1024
"""Queries that a simulated run starts with when its verdict may end it; their number is then doubled."""


def run_server_scenario(config: RunConfig) -> RunResult:
    """Run the scenario once; blocks until every query has ended.

    Raises `ConfigError` for a configuration that cannot be run, and `TargetUnreachable` when the target does not
    answer. An interrupt (Ctrl-C in the main thread) ends the run early and makes the result invalid.
    """
    _check(config)
    if config.target.startswith(SIMULATED):
        return _simulate(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_drive(config, open_target(config)))


def open_target(config: RunConfig) -> Target:
    """The live target at the run's URL; raises `ConfigError` for an unknown scheme."""
    scheme = config.target.partition("://")[0]
    if (config.tls.cacert or config.tls.cert) and scheme in ("http", "grpc"):
        raise ConfigError(f"--cacert and --cert: require a target {scheme}s://host:port, got {config.target}")
    if scheme in ("http", "https"):
        return HttpTarget(config.target, config.model, config.slo_ms, config.connections, config.headers, config.tls)
    if scheme in ("grpc", "grpcs"):
        from sluice.loadgen.target.grpc import GrpcTarget

        return GrpcTarget(config.target, config.model, config.slo_ms, config.headers, config.tls)
    raise ConfigError(
        f"--target: expected http://host:port, https://…, grpc://…, grpcs://… or sim:FILE.yaml, got {config.target}"
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
        raise _nothing_measured(f"--duration ({config.duration_s:g} s)", config.warmup_s)
    if config.connections < 1:
        raise ConfigError(f"--connections: expected at least 1, got {config.connections}")
    if config.seed < 0:
        raise ConfigError(f"--seed: expected at least 0, got {config.seed}")


def _simulate(config: RunConfig) -> RunResult:
    target = SimulatedTarget(config.target, config.model)
    samples, schedule = _plan(config, target.metadata())
    test = _interim_test(config, schedule)
    decided: tuple[Decision, int] | None = None
    queries = len(schedule) if test is None else min(_FIRST_QUERIES, len(schedule))
    while True:
        # A run of more queries starts as one of fewer does, so its first looks need not be taken again.
        part = schedule.head(queries)
        record, server = target.replay(part, samples, config.slo_ms, config.seed, config.drain_timeout_s)
        if test is not None:
            decided = test.first_decision(record, int(part.due_ns[-1]) if queries < len(schedule) else None)
        if decided or queries == len(schedule):
            break
        queries = min(2 * queries, len(schedule))
    return _result(config, schedule, record, decided=decided, simulated=True, server=server, notes=target.notes)


def _interim_test(config: RunConfig, schedule: Schedule) -> InterimTest | None:
    if config.decide_from_s is None:
        return None
    return InterimTest.plan(
        schedule.due_ns,
        slo_ms=config.slo_ms,
        percentile=config.percentile,
        warmup_s=config.warmup_s,
        decide_from_s=config.decide_from_s,
    )


async def _drive(config: RunConfig, target: Target) -> RunResult:
    metadata = await target.metadata()
    samples, schedule = _plan(config, metadata)
    keep_answers = samples.labels is not None
    record = Record.of(schedule, keep_answers)
    issuer = Issuer(schedule, record)
    try:
        await target.prepare({i: samples.tensors(i) for i in np.unique(schedule.sample).tolist()}, issuer, keep_answers)
        before = await asyncio.to_thread(_scrape, config) if config.metrics_url else None
    except BaseException:
        await target.close()
        raise
    cpu_ns = time.process_time_ns()
    record = await issuer.run(target, config.drain_timeout_s)
    cpu_ns = time.process_time_ns() - cpu_ns
    server = None if before is None else await _server_report(config, before, record)
    return _result(
        config,
        schedule,
        record,
        interrupted=issuer.interrupted,
        start_ns=issuer.start_ns,
        client_cpu_us_per_query=cpu_ns / 1e3 / max(1, len(record)),
        server=server,
        predictions=_predictions(target, record, config.output or metadata.outputs[0].name, samples),
        expected=_expected(record, samples),
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


def _plan(config: RunConfig, metadata: TargetModel) -> tuple[Samples, Schedule]:
    samples = load_samples(config.samples, metadata, config.rows, config.seed)
    schedule = server_schedule(
        config.rate,
        config.duration_s,
        config.queries,
        len(samples),
        each_once=config.each_once,
        seed=config.seed,
        arrivals=config.arrivals,
    )
    last_s = int(schedule.due_ns[-1]) / NS_PER_S
    if last_s < config.warmup_s:
        raise _nothing_measured(f"the time of the last query ({last_s:g} s)", config.warmup_s)
    return samples, schedule


def _nothing_measured(limit: str, warmup_s: float) -> ConfigError:
    return ConfigError(f"--warmup: leaves no query to measure; expected less than {limit}, got {warmup_s:g} s")


def _result(
    config: RunConfig,
    schedule: Schedule,
    record: Record,
    *,
    decided: tuple[Decision, int] | None = None,
    interrupted: bool = False,
    simulated: bool = False,
    start_ns: int = 0,
    client_cpu_us_per_query: float | None = None,
    server: ServerReport | None = None,
    predictions: Predictions | None = None,
    expected: Predictions | None = None,
    notes: tuple[str, ...] = (),
) -> RunResult:
    decision = None
    if decided is not None:
        decision, queries = decided
        record = record.head(queries)
    metrics = query_statistics(record, config.slo_ms, config.percentile, config.warmup_s)
    return RunResult(
        config=config,
        schedule_digest=schedule.digest,
        record=record,
        metrics=metrics,
        invalid=invalid_reasons(metrics, config.slo_ms, config.percentile, interrupted, warmup_s=config.warmup_s, decision=decision),
        decision=decision,
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


def _expected(record: Record, samples: Samples) -> Predictions | None:
    if samples.labels is None:
        return None
    size = samples.rows_per_query
    padded = np.full(len(samples) * size, -1, np.int64)
    padded[: len(samples.labels)] = samples.labels
    return padded.reshape(-1, size)[record.sample]


def _environment() -> dict[str, str]:
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "load_average": f"{os.getloadavg()[0]:.2f}",
    }
