"""The random parts of a simulation: service times of batches and confidences of rows."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.interface.decisions import CombineOutputs, DispatchBatch, Member
from sluice.batcher.interface.events import Confidences
from sluice.loadgen.traffic.seeds import generator
from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_US, ms_to_ns

_EVEN_ODDS = 0.5


class ServiceTimeDistribution:
    """Service times by batch size, as quantiles at equal steps of probability, in milliseconds.

    Times of a batch size between two given ones are interpolated; a single quantile is a constant. Raises
    `ConfigError` for invalid quantiles.
    """

    def __init__(self, quantiles_ms: Mapping[int, Sequence[float]]) -> None:
        if not quantiles_ms or min(quantiles_ms) < 1 or len(set(map(len, quantiles_ms.values()))) != 1:
            raise ConfigError("service times: expected equally many quantiles for every batch size, sizes from 1")
        for rows, values in quantiles_ms.items():
            if not values or list(values) != sorted(values) or not 0 < values[0] <= values[-1] < math.inf:
                raise ConfigError(f"service times: expected positive ascending times for {rows} rows, got {values}")
        self._measured = {rows: list(map(float, values)) for rows, values in sorted(quantiles_ms.items())}
        self._sizes = list(self._measured)
        self._by_rows: dict[int, list[float]] = {}

    def draw_ns(self, rows: int, chance: float) -> int:
        """The service time of `rows` rows at the quantile `chance`, in [0, 1)."""
        quantiles = self._by_rows.get(rows)
        if quantiles is None:
            quantiles = self._by_rows[rows] = self._between(rows)
        return ms_to_ns(_at(quantiles, chance))

    def _between(self, rows: int) -> list[float]:
        above = bisect_left(self._sizes, rows)
        if above == len(self._sizes):
            return self._measured[self._sizes[-1]]
        if above == 0 or self._sizes[above] == rows:
            return self._measured[self._sizes[above]]
        small, large = self._sizes[above - 1 : above + 1]
        part = (rows - small) / (large - small)
        pairs = zip(self._measured[small], self._measured[large], strict=True)
        return [low + part * (high - low) for low, high in pairs]


class SlowdownFactors:
    """The slowdown factors of successive batches.

    Pieces of successive factors are drawn at random, and each is played to its end; always 1 without pieces.
    """

    def __init__(self, pieces: Sequence[Sequence[float]], seed: int) -> None:
        self._pieces = pieces or ((1.0,),)
        self._rng = generator(seed, "pace")
        self._rest: Iterator[float] = iter(())

    def __call__(self) -> float:
        """The factor of the next batch."""
        factor = next(self._rest, None)
        if factor is None:
            self._rest = iter(self._pieces[int(self._rng.integers(len(self._pieces)))])
            factor = next(self._rest)
        return factor


class TransportJitter:
    """Random extra transport time, from quantiles at equal steps of probability in microseconds; 0 without them."""

    def __init__(self, quantiles_us: Sequence[float], seed: int) -> None:
        self._quantiles_us = quantiles_us
        self._rng = generator(seed, "strays")

    def __call__(self) -> int:
        """Draw the next extra time, in nanoseconds."""
        if not self._quantiles_us:
            return 0
        return round(_at(self._quantiles_us, self._rng.random()) * NS_PER_US)


class AnswerJitter:
    """The extra time of each query's transport, from quantiles at equal steps of probability in microseconds.

    It is drawn for `queries` queries at a time, in their order; 0 without quantiles.
    """

    def __init__(self, quantiles_us: Sequence[float], seed: int, queries: int) -> None:
        self._quantiles_us = np.array(quantiles_us)
        self._rng = generator(seed, "ways")
        self._queries = queries
        self._drawn: list[int] = []

    def of(self, query: int) -> int:
        """The extra time of a query, in nanoseconds."""
        if not len(self._quantiles_us):
            return 0
        while query >= len(self._drawn):
            chances = self._rng.random(self._queries) * (len(self._quantiles_us) - 1)
            jitter_ns = np.interp(chances, np.arange(len(self._quantiles_us)), self._quantiles_us) * NS_PER_US
            self._drawn += jitter_ns.astype(np.int64).tolist()
        return self._drawn[query]


def _at(quantiles: Sequence[float], chance: float) -> float:
    """The value at the quantile `chance`, in [0, 1)."""
    step, part = divmod(chance * (len(quantiles) - 1), 1)
    low = quantiles[int(step)]
    return low + part * (quantiles[int(step) + 1] - low) if part else low


class StochasticService:
    """The simulated machine: draws service times from `times`, by model key, or takes them from the tables.

    `slowdowns` multiply the drawn times. `escalation` is by the names of the `pipelines`, and `pipeline_of` tells the
    place of a request's pipeline among them.
    """

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, LatencyTable]],
        times: Mapping[str, ServiceTimeDistribution],
        slowdowns: Mapping[str, SlowdownFactors],
        confidence_counts: dict[str, int],
        pipelines: Sequence[PipelineConfig],
        escalation: Mapping[str, Mapping[str, float]],
        pipeline_of: Callable[[int], int],
        seed: int,
    ) -> None:
        self._tables = tables
        self._times = times
        self._slowdowns = slowdowns
        self._confidence_counts = confidence_counts
        self._curves = [_confidence_curves(each, escalation.get(each.name, {})) for each in pipelines]
        self._pipeline_of = pipeline_of
        self._rng = generator(seed, "verdicts")
        self._time_rng = generator(seed, "service")

    def batch_ns(self, batch: DispatchBatch) -> int:
        """Draw the service time of a batch."""
        times = self._times.get(batch.model)
        if times is not None:
            return round(times.draw_ns(batch.run_rows, self._time_rng.random()) * self._slowdowns[batch.model]())
        return self._tables[batch.partition][batch.model].latency_ns(batch.run_rows)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        """Draw the confidences of the members' rows, in order."""
        count = self._confidence_counts[batch.model]
        if not count:
            return ()
        parts = [self._confidences(member) for member in batch.members]
        return tuple(
            tuple(
                level
                for part, member in zip(parts, batch.members, strict=True)
                for level in (part[index] if index < len(part) else (1.0,) * member.rows)
            )
            for index in range(count)
        )

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        """Draw the confidences of a combiner's rows."""
        return self._confidences(combination.member)

    def _confidences(self, member: Member) -> Confidences:
        curves = self._curves[self._pipeline_of(member.request)]
        return tuple(
            tuple(np.interp(self._rng.random(member.rows), chances, levels).tolist())
            for chances, levels in curves.get(member.stage, ())
        )


Curve = tuple[list[float], list[float]]
"""A distribution function: ascending probabilities, and the confidences that rows stay below with them."""


def _confidence_curves(pipeline: PipelineConfig, escalation: Mapping[str, float]) -> dict[int, list[Curve]]:
    """By stage, one curve for each confidence, under which every `when` is met with its configured probability."""
    points: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for stage in pipeline.stages:
        if (when := stage.when) is not None:
            point = (when.below, escalation.get(stage.name, _EVEN_ODDS))
            points.setdefault(when.stage, {}).setdefault(when.confidence, []).append(point)
    curves: dict[int, list[Curve]] = {}
    for source, thresholds in points.items():
        for confidence in range(max(thresholds) + 1):
            levels, chances = zip(*sorted(thresholds.get(confidence, [(_EVEN_ODDS, _EVEN_ODDS)])), strict=True)
            if list(chances) != sorted(chances):
                raise ConfigError(
                    f"escalation.{pipeline.name}: expected no fall as the threshold rises, got {list(chances)}"
                )
            curves.setdefault(source, []).append(([0.0, *chances, 1.0], [0.0, *levels, 1.0]))
    return curves
