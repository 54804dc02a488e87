"""Figures of a run beyond the headline, computed from its record: series, stages, groups, intervals and cost."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sluice.loadgen.records.bootstrap import Interval, mean_interval, quantile_interval
from sluice.loadgen.records.record import NO_OBJECTIVE, Record, Status
from sluice.loadgen.records.stage_times import StageTimes, stage_times
from sluice.loadgen.records.statistics import QueryStatistics, query_statistics
from sluice.loadgen.records.time_series import TimeSeries, time_series
from sluice.models.units import NS_PER_MS, NS_PER_S

_S_PER_HOUR = 3600


class GroupBy(enum.StrEnum):
    """The property that the queries of a group share."""

    STREAM = "stream"
    MODEL = "model"
    OBJECTIVE = "objective"


class GroupStatistics(msgspec.Struct, frozen=True):
    """The statistics of the queries with one stream, model or objective."""

    by: GroupBy
    name: str
    metrics: QueryStatistics


class Intervals(msgspec.Struct, frozen=True):
    """95 % confidence intervals of a run's figures, by the bootstrap over blocks of time."""

    p50_ms: Interval | None
    p99_ms: Interval | None
    attainment: Interval
    goodput_per_s: Interval | None


class CostSource(enum.StrEnum):
    """Origin of a cost."""

    PRICE = "price"
    """The price of an hour, which the user gave."""
    METRICS = "metrics"
    """The server's metrics."""
    SAMPLE = "sample"
    """The costs in a sample of the answers."""


class Cost(msgspec.Struct, frozen=True):
    """The cost of 1000 good answers, in units of currency, warm-up included."""

    per_1000_good: float
    source: CostSource


class StreamLabel(msgspec.Struct, frozen=True):
    """A stream of a mix: its name, and its model or pipeline."""

    name: str
    model: str


@dataclass(frozen=True)
class Figures:
    """Figures of a run. `intervals` is None for a run that is too short, and `cost` where no cost is known."""

    series: TimeSeries
    stages: tuple[StageTimes, ...]
    groups: tuple[GroupStatistics, ...]
    intervals: Intervals | None
    cost: Cost | None


def figures(
    record: Record,
    percentile: float,
    warmup_s: float,
    *,
    seed: int = 0,
    streams: Sequence[StreamLabel] = (),
    server_cost: float | None = None,
    price_per_hour: float | None = None,
) -> Figures:
    """Compute the figures of a record; `streams` are those of its mix, in the order of their numbers."""
    series = time_series(record)
    stages = _stages(record, streams)
    return Figures(
        series=series,
        stages=stages,
        groups=tuple(_groups(record, percentile, warmup_s, streams)),
        intervals=_intervals(record, series, warmup_s, seed),
        cost=_cost(record, stages, server_cost, price_per_hour),
    )


def _stages(record: Record, streams: Sequence[StreamLabel]) -> tuple[StageTimes, ...]:
    """Times by stage, apart for each of several models or pipelines."""
    if len(streams) < 2:
        return stage_times(record.stages.values())
    by_model: dict[str, list[str]] = {}
    for query, text in record.stages.items():
        by_model.setdefault(streams[int(record.stream[query])].model, []).append(text)
    return tuple(stage for model, texts in by_model.items() for stage in stage_times(texts, model))


def _groups(
    record: Record, percentile: float, warmup_s: float, streams: Sequence[StreamLabel]
) -> list[GroupStatistics]:
    groups = []

    def add(by: GroupBy, name: str, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        groups.append(GroupStatistics(by, name, query_statistics(record.select(chosen), percentile, warmup_s)))

    if len(streams) > 1:
        for number, stream in enumerate(streams):
            add(GroupBy.STREAM, stream.name, record.stream == number)
        models = list(dict.fromkeys(stream.model for stream in streams))
        if 1 < len(models) < len(streams):
            for model in models:
                numbers = [number for number, stream in enumerate(streams) if stream.model == model]
                add(GroupBy.MODEL, model, np.isin(record.stream, numbers))
    objectives = np.unique(record.slo_ns).tolist()
    if len(objectives) > 1:
        for slo_ns in objectives:
            name = "none" if slo_ns == NO_OBJECTIVE else f"{slo_ns / NS_PER_MS:g} ms"
            add(GroupBy.OBJECTIVE, name, record.slo_ns == slo_ns)
    return groups


def _intervals(record: Record, series: TimeSeries, warmup_s: float, seed: int) -> Intervals | None:
    record = record.after(warmup_s)
    judged = record.status != Status.CANCELLED
    due_ns = record.due_ns[judged]
    attainment = mean_interval(due_ns, record.good[judged], seed)
    if attainment is None:
        return None
    # The last second may be cut short.
    first, last = math.ceil(warmup_s), int(due_ns[-1] // NS_PER_S)
    seconds = np.arange(first, last, dtype=np.int64)
    ok = judged & (record.status == Status.OK)
    due_ns = record.due_ns[ok]
    latency_ns = record.done_ns[ok]
    latency_ns -= due_ns
    return Intervals(
        p50_ms=_in_ms(quantile_interval(due_ns, latency_ns, 0.50, seed)),
        p99_ms=_in_ms(quantile_interval(due_ns, latency_ns, 0.99, seed)),
        attainment=Interval(max(attainment.low, 0.0), min(attainment.high, 1.0)),
        goodput_per_s=mean_interval(seconds * NS_PER_S, series.good[first:last], seed),
    )


def _in_ms(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(interval.low / NS_PER_MS, interval.high / NS_PER_MS)


def _cost(
    record: Record, stages: Sequence[StageTimes], server_cost: float | None, price_per_hour: float | None
) -> Cost | None:
    good = int(record.good.sum())
    if not good:
        return None
    if price_per_hour is not None:
        span_s = float(record.done_ns.max() - record.due_ns.min()) / NS_PER_S
        return Cost(price_per_hour * span_s / _S_PER_HOUR / good * 1000, CostSource.PRICE)
    if server_cost is not None:
        return Cost(server_cost / good * 1000, CostSource.METRICS)
    if stages:
        sampled = sum(stage.cost * stage.queries for stage in stages) / len(record.stages)
        return Cost(sampled * len(record) / good * 1000, CostSource.SAMPLE)
    return None
