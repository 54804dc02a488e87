"""Runs: one scenario against a live or a simulated target."""

import asyncio
import os
import platform
import sys

import numpy as np
import uvloop

from sluice.loadgen.records.record import Record
from sluice.loadgen.records.samples import Samples
from sluice.loadgen.records.server_metrics import ServerReport
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.records.validity import invalid_reasons
from sluice.loadgen.run.live import drive, open_live
from sluice.loadgen.run.plan import Plan, make_plan, nothing_measured
from sluice.loadgen.run.result import Predictions, RunResult
from sluice.loadgen.run.server_side import read_server, report_since
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.simulation.target import SIMULATED, SimulatedTarget
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
        return runner.run(_live(config))


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
    if not 0 <= config.explain_share <= 1:
        raise ConfigError(f"--explain-share: expected 0 to 100 %, got {config.explain_share * 100:g} %")
    if config.price_per_hour is not None and not 0 <= config.price_per_hour < float("inf"):
        raise ConfigError(f"--price-per-hour: expected at least 0, got {config.price_per_hour:g}")
    if config.seed < 0:
        raise ConfigError(f"--seed: expected at least 0, got {config.seed}")


def _simulate(config: RunConfig) -> RunResult:
    target = SimulatedTarget(config.target)
    plan = make_plan(config, target.metadata(config.model))
    record, server = target.replay(plan.schedule, plan.requests, config.seed, config.drain_timeout_s)
    return _result(config, plan, record, simulated=True, server=server, notes=target.notes)


async def _live(config: RunConfig) -> RunResult:
    target = open_live(config)
    metadata = await target.metadata(config.model)
    plan = make_plan(config, metadata)
    before = await read_server(config, target)
    output = config.output or metadata.outputs[0].name
    driven = await drive(config, target, plan, output)
    return _result(
        config,
        plan,
        driven.record,
        interrupted=driven.interrupted,
        start_ns=driven.start_ns,
        client_cpu_us_per_query=driven.cpu_ns / 1e3 / max(1, len(driven.record)),
        server=await report_since(before, config, target, driven.record),
        predictions=driven.predictions,
        expected=_expected(driven.record, plan.samples),
    )


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
