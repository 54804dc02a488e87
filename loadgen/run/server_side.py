"""Readings of the server's own counts before and after a live run."""

import asyncio
import contextlib
from dataclasses import dataclass

import msgspec

from sluice.loadgen.records.model_statistics import ServedCounts, activity_between, read_counts
from sluice.loadgen.records.record import Record
from sluice.loadgen.records.server_metrics import Counters, ServerReport, metrics_between, scrape
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.target.base import Target
from sluice.models.errors import ServingError

_PIPELINES = frozenset({"sluice_pipeline", "ensemble"})
"""Platforms of pipelines, as servers name them."""
_MOST_ASKED = 64
"""Most models whose platform is asked for after a run."""


@dataclass(frozen=True)
class ServerReading:
    """Counts of a server at one time: of its metrics and of its models, each None where it is not known."""

    counters: Counters | None
    models: dict[str, ServedCounts] | None


async def read_server(config: RunConfig, target: Target) -> ServerReading:
    """Read a server; raises `ConfigError` when the metrics that are asked for cannot be read."""
    counters = None
    if config.metrics_url:
        counters = await asyncio.to_thread(scrape, config.metrics_url, config.headers, config.tls)
    body = await target.statistics()
    models = None
    if body is not None:
        with contextlib.suppress(ValueError):  # some other server's page at this path
            models = read_counts(body)
    return ServerReading(counters, models)


async def report_since(before: ServerReading, config: RunConfig, target: Target, record: Record) -> ServerReport | None:
    """The report of what happened since a reading; None for a server without figures.

    The figures of the run stay valid when the server dies under load, so its last reading may fail.
    """
    try:
        after = await read_server(config, target)
    except ServingError as error:
        record.count_reason(str(error))
        return None
    report = None
    if before.counters is not None and after.counters is not None:
        report = metrics_between(before.counters, after.counters)
    if before.models is not None and after.models is not None:
        models = activity_between(before.models, after.models)
        if models:
            pipelines = await _pipelines([after.models[model.model].name for model in models], target)
            models = activity_between(before.models, after.models, pipelines)
            report = msgspec.structs.replace(report or ServerReport(), models=models)
    return report


async def _pipelines(names: list[str], target: Target) -> list[str]:
    """The names of those models that are pipelines."""
    found = []
    for name in list(dict.fromkeys(names))[:_MOST_ASKED]:
        with contextlib.suppress(ServingError):
            if (await target.metadata(name)).platform in _PIPELINES:
                found.append(name)
    return found
