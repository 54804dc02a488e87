"""A run of Sluice's load generator in the terms of LoadGen's logs."""

import time

import msgspec
import numpy as np

from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, NO_LIMIT_NS, OFFLINE, SERVER, LoggedRun, LoggedSettings
from sluice.loadgen.mlperf.settings import NAMES
from sluice.loadgen.records.outputs import KeptOutputs
from sluice.loadgen.records.record import Status
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.scenarios.mlperf import is_mlperf
from sluice.loadgen.simulation.target import SIMULATED
from sluice.loadgen.target.v2 import wire_bytes
from sluice.loadgen.traffic.mlperf_schedule import SampleChoice, accuracy_sets, performance_set
from sluice.models.errors import ConfigError
from sluice.models.units import ms_to_ns

_SAMPLES_PER_QUERY = 8


def is_loggable(config: RunConfig) -> bool:
    """True for a run that LoadGen has logs for: one of its scenarios, with one model."""
    return config.scenario in NAMES and config.mix is None


def check_loggable(config: RunConfig) -> None:
    """Raise `ConfigError` for a run that LoadGen has no logs for."""
    if config.scenario not in NAMES:
        names = ", ".join(NAMES)
        raise ConfigError(f"--mlperf-logs: MLPerf has no scenario {config.scenario}; expected one of {names}")
    if not is_loggable(config):
        raise ConfigError("--mlperf-logs: MLPerf has no mixes; expected a run of one model")


def keeping_outputs(config: RunConfig, sampled: KeptOutputs | None = None) -> RunConfig:
    """The configuration of a run that keeps outputs for the accuracy log; those `sampled` in performance mode."""
    if config.target.startswith(SIMULATED) or config.kept_outputs is not None:
        return config
    return msgspec.structs.replace(config, kept_outputs=KeptOutputs() if config.each_once else sampled)


def run_as_logged(result: RunResult) -> LoggedRun:
    """The run as LoadGen would tell it; it is one that `check_loggable` lets pass, and has a query.

    Queries that the client cancelled, or parts of which it cancelled, are left out: LoadGen has none.
    """
    config, record = result.config, result.record
    scenario = NAMES[config.scenario]
    group = (config.samples_per_query or _SAMPLES_PER_QUERY) if scenario == MULTI_STREAM else 1
    status = record.status[: len(record) // group * group].reshape(-1, group)
    rows = np.flatnonzero(np.repeat((status != Status.CANCELLED).all(axis=1), group))
    answered = np.asarray(record.status[rows] == Status.OK)
    faults = list(result.limits)
    if (scenario != SERVER or config.slo_ms is None) and not answered.all():
        faults.append(f"{int(len(rows) - answered.sum())} samples had no answer; every one has to have")
    numbers = {int(row): number for number, row in enumerate(rows)}
    return LoggedRun(
        system=f"{config.model} at {config.target}",
        data_set=config.samples.file,
        scenario=scenario,
        accuracy_mode=config.each_once,
        settings=_settings(result, len(rows), group),
        loaded=_loaded(result, group),
        samples=record.sample[rows],
        start_ns=record.due_ns[rows],
        done_ns=record.done_ns[rows],
        answered=answered,
        group=len(rows) if scenario == OFFLINE else group,
        faults=faults,
        failures=record.reasons,
        answers={
            numbers[query]: b"".join(wire_bytes(array) for array in outputs.values())
            for query, outputs in result.outputs.items()
            if query in numbers
        },
        began_s=None if result.simulated else time.time() - (time.monotonic_ns() - result.start_ns) / 1e9,
    )


def _loaded(result: RunResult, group: int) -> list[list[int]]:
    config, samples = result.config, result.sample_count
    if not is_mlperf(config):
        return [list(range(samples))]
    rules = msgspec.structs.replace(config.mlperf, seeds=config.mlperf_seeds, samples_per_query=group)
    sets = accuracy_sets(samples, rules) if config.each_once else [performance_set(samples, rules)]
    return [each.tolist() for each in sets]


def _settings(result: RunResult, samples: int, group: int) -> LoggedSettings:
    config = result.config
    offline = config.scenario is ScenarioName.OFFLINE
    server = config.scenario is ScenarioName.SERVER
    limit_ns = NO_LIMIT_NS if config.slo_ms is None else ms_to_ns(config.slo_ms)
    # The duration of LoadGen's arrivals is the least one; that of others is the most.
    least_s = config.min_duration_s or (config.duration_s if is_mlperf(config) and server else None) or 0.0
    settings = LoggedSettings(
        samples_per_query=samples if offline else group,
        target_qps=config.rate if server else 0.0,
        target_latency_ns=limit_ns if server else 0,
        target_latency_percentile=config.percentile / 100,
        max_async_queries=0 if server else 1,
        min_duration_ms=round(least_s * 1e3),
        max_duration_ms=round((config.duration_s or 0.0) * 1e3) if not is_mlperf(config) else 0,
        min_query_count=1 if offline else config.min_queries or 0,
        max_query_count=1 if offline else config.queries or 0,
        min_sample_count=(config.min_queries or 0) * (1 if offline else group),
        performance_sample_count=result.sample_count,
        accuracy_sample_count=result.sample_count,
    )
    changes: dict[str, object] = {}
    if is_mlperf(config):
        rules = config.mlperf
        changes |= {
            "qsl_rng_seed": config.mlperf_seeds.qsl,
            "sample_index_rng_seed": config.mlperf_seeds.sample_index,
            "schedule_rng_seed": config.mlperf_seeds.schedule,
            "performance_issue_unique": rules.choice is SampleChoice.UNIQUE,
            "performance_issue_same": rules.choice is SampleChoice.SAME,
            "performance_issue_same_index": rules.place,
            "sample_concatenate_permutation": rules.choice is SampleChoice.PERMUTATIONS,
        }
        if rules.set_size:
            changes["performance_sample_count"] = min(rules.set_size, result.sample_count)
        if rules.accuracy_samples:
            changes["accuracy_sample_count"] = min(rules.accuracy_samples, result.sample_count)
    if config.kept_outputs is not None and not config.each_once:
        changes |= {
            "accuracy_log_rng_seed": config.kept_outputs.seed,
            "accuracy_log_probability": config.kept_outputs.share,
        }
    return msgspec.structs.replace(settings, **changes)
