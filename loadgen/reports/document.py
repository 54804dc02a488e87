"""Reports of runs as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.seeds import STREAMS, sub_seed

SCHEMA_VERSION = 1
RUN, RUNS = "run", "runs"
"""Kinds of reports."""


def run_json(result: RunResult) -> bytes:
    """The report of a run as a JSON object; times are in milliseconds unless their key names another unit."""
    return document(
        {
            "kind": RUN,
            "config": without_secrets(result.config),
            "simulated": result.simulated,
            "schedule_sha256": result.schedule_digest,
            "seeds": {"master": result.config.seed}
            | {stream: sub_seed(result.config.seed, stream) for stream in STREAMS},
            "environment": result.environment,
            "score": result.score,
            "metrics": msgspec.to_builtins(result.metrics) | {"waited_for_connection_ms": result.metrics.waiting_ms},
            "client_cpu_us_per_query": result.client_cpu_us_per_query,
            "client_cpu_share": result.client_cpu_share,
            "baseline_lateness_ms": result.baseline_lateness_ms,
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
            "sample_count": result.sample_count,
            "validity": {"valid": not result.invalid, "reasons": result.invalid, "limits": result.limits},
            "decision": result.decision,
            "slo_met": result.slo_met,
            "verdict": result.verdict,
            "notes": result.notes,
        }
    )


def runs_json(results: Sequence[RunResult]) -> bytes:
    """The report of one run, or an object with the reports of several under `runs`."""
    if len(results) == 1:
        return run_json(results[0])
    return document({"kind": RUNS, "runs": [msgspec.Raw(run_json(result)) for result in results]})


def without_secrets(config: RunConfig) -> RunConfig:
    """A configuration without the values of headers, which may be keys."""
    return msgspec.structs.replace(config, headers=tuple((name, "********") for name, _ in config.headers))


def document(content: dict[str, Any]) -> bytes:
    """A report of any kind as a JSON object with the version of its schema."""
    return msgspec.json.format(msgspec.json.encode({"schema_version": SCHEMA_VERSION} | content), indent=2) + b"\n"
