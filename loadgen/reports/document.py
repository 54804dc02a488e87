"""Reports of runs and searches as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from sluice.loadgen.run.find_max import MaxRate
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.seeds import STREAMS, sub_seed

SCHEMA_VERSION = 1
RUN, RUNS, FIND_MAX = "run", "runs", "find-max"
"""Kinds of reports."""


def run_json(result: RunResult) -> bytes:
    """The report of a run as a JSON object; times are in milliseconds unless their key names another unit."""
    return _json(
        {
            "kind": RUN,
            "config": _without_secrets(result.config),
            "simulated": result.simulated,
            "schedule_sha256": result.schedule_digest,
            "seeds": {"master": result.config.seed}
            | {stream: sub_seed(result.config.seed, stream) for stream in STREAMS},
            "environment": result.environment,
            "metrics": result.metrics,
            "client_cpu_us_per_query": result.client_cpu_us_per_query,
            "accuracy": result.accuracy,
            "answered_rows": result.answered_rows,
            "failures": result.record.reasons,
            "server": result.server,
            "stages": result.figures.stages,
            "groups": result.figures.groups,
            "intervals": result.figures.intervals,
            "cost": result.figures.cost,
            "interrupted": result.interrupted,
            "start_ns": result.start_ns,
            "validity": {"valid": not result.invalid, "reasons": result.invalid},
            "slo_met": result.slo_met,
            "verdict": result.verdict,
            "notes": result.notes,
        }
    )


def runs_json(results: Sequence[RunResult]) -> bytes:
    """The report of one run, or an object with the reports of several under `runs`."""
    if len(results) == 1:
        return run_json(results[0])
    return _json({"kind": RUNS, "runs": [msgspec.Raw(run_json(result)) for result in results]})


def _without_secrets(config: RunConfig) -> RunConfig:
    """A configuration without the values of headers, which may be keys."""
    return msgspec.structs.replace(config, headers=tuple((name, "********") for name, _ in config.headers))


def max_rate_json(found: MaxRate) -> bytes:
    """The report of `find-max` as a JSON object."""
    return _json(
        {
            "kind": FIND_MAX,
            "rate": found.rate,
            "failed_rate": found.failed_rate,
            "client_limited": found.client_limited,
            "too_short": found.too_short,
            "probes": [msgspec.Raw(run_json(probe.result)) for probe in found.probes],
        }
    )


def _json(content: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"schema_version": SCHEMA_VERSION} | content), indent=2) + b"\n"
