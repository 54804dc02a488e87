"""Runs: one scenario against a live or a simulated target."""

import asyncio
import os
import platform
import sys
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
import uvloop

from sluice.loadgen.records.interim import InterimTest
from sluice.loadgen.records.outputs import Outputs
from sluice.loadgen.records.progress import Watch, unwatched
from sluice.loadgen.records.record import Record
from sluice.loadgen.records.server_metrics import ServerReport
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.records.validity import invalid_reasons
from sluice.loadgen.run.live import drive, model_changes, open_live, read_metadata
from sluice.loadgen.run.plan import RunPlan, interim_test, make_plan, nothing_measured
from sluice.loadgen.run.processes import drive_in_processes
from sluice.loadgen.run.result import Predictions, RunResult
from sluice.loadgen.run.server_side import read_server, report_since
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.loadgen.simulation.target import SIMULATED, SimulatedTarget
from sluice.loadgen.target.inproc import IN_PROCESS
from sluice.models.errors import ConfigError

_MIN_PERCENTILE, _MAX_PERCENTILE = 1.0, 99.9999
"""A claim about the highest one takes 4.6 million queries."""


def run(config: RunConfig, watch: Watch = unwatched) -> RunResult:
    """Run the configured scenario once; blocks until every query has ended.

    Raises `ConfigError` for a configuration that cannot be run, and `TargetUnreachable` when the target does not
    answer. An interrupt (Ctrl-C in the main thread) ends the run early and makes the result invalid.
    """
    _check(config)
    if config.target.startswith(SIMULATED):
        return _simulate(config, watch)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live(config, watch))


def plan_run(config: RunConfig) -> RunPlan:
    """The plan of a run, of which nothing is sent; raises as `run` does."""
    _check(config)
    if config.target.startswith(SIMULATED):
        return _simulated_plan(config, SimulatedTarget(config.target, config.policy_file))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live_plan(config))


def _check(config: RunConfig) -> None:
    if not _MIN_PERCENTILE <= config.percentile <= _MAX_PERCENTILE:
        raise ConfigError(
            f"--percentile: expected a percentage from {_MIN_PERCENTILE:g} to {_MAX_PERCENTILE}, such as 99, "
            f"got {config.percentile}"
        )
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
    if config.procs > 1 and config.target.startswith(SIMULATED):
        raise ConfigError(f"--procs: a simulated target has no client processes; expected 1, got {config.procs}")
    if config.procs > 1 and config.kept_outputs is not None:
        raise ConfigError(f"--procs: one process keeps the outputs; expected 1, got {config.procs}")
    if config.procs > 1 and config.target.startswith(IN_PROCESS):
        raise ConfigError(f"--procs: a target inside the client has one process; expected 1, got {config.procs}")
    if config.policy_file and not config.target.startswith(SIMULATED):
        raise ConfigError(f"--policies: requires a target sim:FILE, whose settings they replace, got {config.target}")
    if config.seed < 0:
        raise ConfigError(f"--seed: expected at least 0, got {config.seed}")


def _simulate(config: RunConfig, watch: Watch) -> RunResult:
    target = SimulatedTarget(config.target, config.policy_file)
    plan = _simulated_plan(config, target)
    interim = interim_test(config, plan)
    replayed = target.replay(
        plan.schedule,
        plan.pacing,
        plan.requests,
        plan.slo_ns,
        config.random_times_seed,
        config.drain_timeout_s,
        interim,
        watch,
    )
    return _result(
        config,
        plan,
        replayed.record,
        interim=interim,
        interrupted=replayed.interrupted,
        simulated=True,
        server=replayed.server,
        notes=target.notes,
    )


def _simulated_plan(config: RunConfig, target: SimulatedTarget) -> RunPlan:
    return make_plan(config, [target.metadata(stream.model) for stream in config.streams])


async def _live_plan(config: RunConfig) -> RunPlan:
    target = open_live(config)
    try:
        return make_plan(config, await read_metadata(config, target))
    finally:
        await target.close()


async def _live(config: RunConfig, watch: Watch) -> RunResult:
    target = open_live(config)
    try:
        metadata = await read_metadata(config, target)
        plan = make_plan(config, metadata)
        before = await read_server(config, target)
    except BaseException:
        await target.close()
        raise
    interim = interim_test(config, plan)
    if config.procs > 1:
        await target.close()
        driven = await drive_in_processes(config, plan, interim, watch)
    else:
        driven = await drive(config, target, plan, interim=interim, watch=watch)
    # A target inside the client would be made once more to be asked.
    changes = [] if config.target.startswith(IN_PROCESS) else await model_changes(config, metadata)
    return _result(
        config,
        plan,
        driven.record,
        lost=driven.lost,
        changes=changes,
        interim=interim,
        interrupted=driven.interrupted,
        start_ns=driven.start_ns,
        client_cpu_us_per_query=driven.cpu_ns / 1e3 / max(1, len(driven.record)),
        client_cpu_share=driven.cpu_share,
        baseline_lateness_ms=driven.baseline_lateness_ms,
        server=await report_since(before, config, target, driven.record),
        predictions=driven.predictions,
        expected=plan.table.expected(driven.record.sample),
        outputs=driven.outputs,
    )


def _result(
    config: RunConfig,
    plan: RunPlan,
    record: Record,
    *,
    lost: tuple[str, ...] = (),
    changes: Sequence[str] = (),
    interim: InterimTest | None = None,
    interrupted: bool = False,
    simulated: bool = False,
    start_ns: int = 0,
    client_cpu_us_per_query: float | None = None,
    client_cpu_share: float | None = None,
    baseline_lateness_ms: float | None = None,
    server: ServerReport | None = None,
    predictions: Predictions | None = None,
    expected: Predictions | None = None,
    outputs: Outputs = MappingProxyType({}),
    notes: tuple[str, ...] = (),
) -> RunResult:
    decision = None
    if interim is not None and interim.decided is not None:
        decision, queries = interim.decided
        record = record.head(queries)
    scenario = SCENARIOS[config.scenario]
    metrics = query_statistics(record, config.percentile, config.warmup_s)
    score = scenario.score(record, config)
    reasons = invalid_reasons(
        metrics,
        config.slo_ms,
        config.percentile,
        interrupted,
        sample=score.sample,
        warmup_s=config.warmup_s,
        decision=decision,
        cpu_share=client_cpu_share,
        baseline_lateness_ms=baseline_lateness_ms,
        is_paced=scenario.is_paced,
    )
    if not score.queries and not score.is_sample:
        reasons.append(f"too short: no query after the warm-up of {config.warmup_s:g} s")
    return RunResult(
        config=config,
        schedule_digest=plan.schedule.digest,
        record=record,
        metrics=metrics,
        score=score,
        invalid=[*lost, *changes, *reasons, *score.unmet],
        lost=lost,
        decision=decision,
        interrupted=interrupted,
        simulated=simulated,
        start_ns=start_ns,
        client_cpu_us_per_query=client_cpu_us_per_query,
        client_cpu_share=client_cpu_share,
        baseline_lateness_ms=baseline_lateness_ms,
        server=server,
        predictions=predictions,
        expected=expected,
        outputs=outputs,
        sample_count=sum(len(samples) for samples in plan.table.samples),
        environment=_environment(),
        notes=notes,
    )


def _environment() -> dict[str, str]:
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "load_average": f"{os.getloadavg()[0]:.2f}",
    }
