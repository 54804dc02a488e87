"""The part of a run that a comparison needs: its figures, and what makes two runs comparable."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.loadgen.records.statistics import QueryStatistics
from sluice.loadgen.run.result import RunResult
from sluice.models.errors import ConfigError

RESULT_FILE = "result.json"


@dataclass(frozen=True)
class ComparedFigure:
    """A figure that is compared; `better` is 1 where larger values are better, and -1 where smaller ones are."""

    name: str
    of: Callable[[QueryStatistics], float]
    better: int
    form: str


def _latency(metrics: QueryStatistics, name: str) -> float:
    return math.inf if metrics.latency_ms is None else float(getattr(metrics.latency_ms, name))


FIGURES = (
    ComparedFigure("p50", lambda metrics: _latency(metrics, "p50"), -1, "{:.3f} ms"),
    ComparedFigure("p99", lambda metrics: _latency(metrics, "p99"), -1, "{:.3f} ms"),
    ComparedFigure("goodput", lambda metrics: metrics.goodput_per_s, 1, "{:.2f}/s"),
    ComparedFigure("attainment", lambda metrics: metrics.attainment, 1, "{:.2%}"),
)


class _Config(msgspec.Struct, frozen=True):
    """The part of a run's configuration that its figures depend on."""

    target: str
    model: str
    seed: int
    slo_ms: float | None
    warmup_s: float


class _Validity(msgspec.Struct, frozen=True):
    limits: list[str]


class _Report(msgspec.Struct, frozen=True):
    """The part of a run's JSON report that a comparison reads."""

    kind: str
    config: _Config
    schedule_sha256: str
    metrics: QueryStatistics
    validity: _Validity


@dataclass(frozen=True)
class ComparedRun:
    """One run in a comparison.

    `source` says where it is from, for messages. `limits` are the reasons why its figures say nothing about the target,
    such as a client that fell short of the schedule; a run that is too short for a verdict of its own has none.
    """

    source: str
    target: str
    model: str
    seed: int
    schedule_digest: str
    slo_ms: float | None
    warmup_s: float
    metrics: QueryStatistics
    limits: tuple[str, ...]


def compared_run(result: RunResult) -> ComparedRun:
    """The run that has just been made."""
    config = result.config
    return ComparedRun(
        source=f"{config.target} with seed {config.seed}",
        target=config.target,
        model=config.model,
        seed=config.seed,
        schedule_digest=result.schedule_digest,
        slo_ms=config.slo_ms,
        warmup_s=config.warmup_s,
        metrics=result.metrics,
        limits=tuple(result.limits),
    )


def read_runs(path: Path) -> list[ComparedRun]:
    """The runs in a JSON report, in a result folder, or in a folder of either, by name.

    Raises `ConfigError` for a path without any, and for a file that is no report of a run.
    """
    if path.is_file():
        return [_read_run(path)]
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder; expected reports of runs, or the URL of a target")
    if (path / RESULT_FILE).is_file():
        return [_read_run(path / RESULT_FILE)]
    files = sorted([*path.glob("*.json"), *path.glob(f"*/{RESULT_FILE}")])
    if not files:
        raise ConfigError(f"{path}: no reports of runs; expected *.json or */{RESULT_FILE}")
    return [_read_run(file) for file in files]


def _read_run(file: Path) -> ComparedRun:
    try:
        report = msgspec.json.decode(file.read_bytes(), type=_Report)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: expected the JSON report of a run: {error}") from error
    if report.kind != "run":
        raise ConfigError(f"{file}: expected the JSON report of a run, got one of {report.kind}")
    config = report.config
    return ComparedRun(
        source=str(file),
        target=config.target,
        model=config.model,
        seed=config.seed,
        schedule_digest=report.schedule_sha256,
        slo_ms=config.slo_ms,
        warmup_s=config.warmup_s,
        metrics=report.metrics,
        limits=tuple(report.validity.limits),
    )
