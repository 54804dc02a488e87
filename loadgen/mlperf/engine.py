"""`loadgen mlperf`: MLPerf's own LoadGen against a live target, in a child process."""

import asyncio
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.mlperf.settings import NAMES
from sluice.loadgen.records.early_stopping import queries_needed
from sluice.loadgen.records.outputs import KeptOutputs
from sluice.loadgen.run.child import TaskProcess
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.simulation.target import SIMULATED
from sluice.loadgen.traffic.arrivals import ArrivalProcess
from sluice.models.errors import ConfigError

SUMMARY, DETAIL = "mlperf_log_summary.txt", "mlperf_log_detail.txt"
ENDED = b"ended "
"""The word of the child at the end; a sentence follows if LoadGen did not come to its end."""

_LINE = ":::MLLOG "
_MODULE = "sluice.loadgen.mlperf.engine_child"


@dataclass(frozen=True)
class EngineTask:
    """A run of LoadGen with the settings of `config`, whose log files go to an existing `folder`.

    LoadGen plans the Offline scenario by `expected_rate`, samples a second, and the streams by `expected_latency_ms`:
    a stream that is faster ends before its least duration. In performance mode it logs the answers that are `sampled`.
    """

    config: RunConfig
    folder: Path
    expected_rate: float
    expected_latency_ms: float
    sampled: KeptOutputs | None = None


@dataclass(frozen=True)
class EngineResult:
    """LoadGen's own verdict, from its log files.

    `failure` says in a sentence why LoadGen was ended before its end, and is empty otherwise. `valid` is its verdict;
    in accuracy mode, that it logged no error. `too_short` is true for a performance run of less than the least duration
    or number of queries, or of too few queries for any verdict on the percentile.
    """

    failure: str
    valid: bool
    too_short: bool
    summary: str


def run_engine(task: EngineTask) -> EngineResult:
    """Have LoadGen drive the target; blocks until it ends, or is ended since it would not.

    Raises `ConfigError` for what LoadGen cannot do, and `TargetUnreachable`. An interrupt ends the child.
    """
    _check(task)
    failure = asyncio.run(_supervised(task))
    if failure:
        return EngineResult(failure, valid=False, too_short=True, summary="")
    entries = _entries(task.folder / DETAIL)
    summary = (task.folder / SUMMARY).read_text(encoding="utf-8")
    if task.config.each_once:
        return EngineResult("", valid=not entries.get("num_errors", 0), too_short=False, summary=summary)
    return EngineResult(
        failure="",
        valid=entries.get("result_validity") == "VALID",
        too_short=not (entries.get("result_min_duration_met") and entries.get("result_min_queries_met"))
        or entries.get("result_query_count", 0) < queries_needed(0, task.config.percentile),
        summary=summary,
    )


async def _supervised(task: EngineTask) -> str:
    """A sentence about how LoadGen failed; empty if it came to its end."""
    child = await TaskProcess.start(_MODULE, task)
    finished = False
    try:
        failure = (await child.hear(ENDED)).decode()
        finished = not child.lost
    finally:
        await child.end(at_once=not finished)
    return f"the process of LoadGen {child.lost}" if child.lost else failure


def _check(task: EngineTask) -> None:
    config = task.config
    if importlib.util.find_spec("mlperf_loadgen") is None:
        raise ConfigError("loadgen mlperf: needs mlcommons-loadgen; expected `pip install 'sluice-gateway[mlperf]'`")
    if config.target.startswith(SIMULATED):
        raise ConfigError(f"--target: LoadGen runs in real time; expected a live server, got {config.target}")
    if config.scenario not in NAMES:
        raise ConfigError(f"--scenario: expected {', '.join(NAMES)}; got {config.scenario}")
    for option, given in (
        ("--arrivals", config.arrivals.process is not ArrivalProcess.MLPERF),
        ("--procs", config.procs > 1),
        ("--mix", config.mix is not None),
        ("--schedule", bool(config.schedule_file)),
        ("--cancel", config.cancellation is not None),
        ("--deadline-spread", config.deadline_spread is not None),
        ("--metrics-url", bool(config.metrics_url)),
    ):
        if given:
            raise ConfigError(f"{option}: LoadGen does not have it; expected `loadgen run`, or no {option}")
    if config.scenario is ScenarioName.SERVER and config.slo_ms is None and not config.each_once:
        raise ConfigError("--slo-ms: required, since LoadGen's Server scenario is about a latency")
    if config.scenario is ScenarioName.SERVER and not 0 < config.rate < float("inf"):
        raise ConfigError(f"--rate: expected a number above 0, got {config.rate:g}")
    for option, number in (
        ("--expected-rate", task.expected_rate),
        ("--expected-latency-ms", task.expected_latency_ms),
    ):
        if not 0 < number < float("inf"):
            raise ConfigError(f"{option}: expected a number above 0, got {number:g}")


def _entries(path: Path) -> dict[str, Any]:
    """The values of LoadGen's log by their keys; of a key that comes again, the last."""
    lines = path.read_text(encoding="utf-8").splitlines()
    entries = [msgspec.json.decode(line.removeprefix(_LINE)) for line in lines if line.startswith(_LINE)]
    return {entry["key"]: entry["value"] for entry in entries}
