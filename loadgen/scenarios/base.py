"""The interface of a scenario."""

from typing import Protocol

import msgspec

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule


class Figure(msgspec.Struct, frozen=True):
    """A figure of a report; `value` is None where the run cannot tell."""

    name: str
    value: float | None
    unit: str


class Score(msgspec.Struct, frozen=True):
    """The result of a run in its scenario; the first of the `figures` is MLPerf's metric.

    `queries` and `good` are the queries after the warm-up and those of them within the objective, as the scenario
    counts queries: the queries of a group are one. With `is_sample` the share of good ones is that of a sample, so that
    early stopping has to confirm it; otherwise these queries are all that count. `unmet` has a sentence for each of the
    scenario's requirements that the run does not meet.
    """

    figures: tuple[Figure, ...]
    queries: int
    good: int
    is_sample: bool = True
    unmet: tuple[str, ...] = ()

    @property
    def misses(self) -> int:
        """Number of queries that missed the objective."""
        return self.queries - self.good

    @property
    def attainment(self) -> float:
        """Share of the queries that met the objective; 0 without queries."""
        return self.good / self.queries if self.queries else 0.0

    @property
    def sample(self) -> int | None:
        """Number of queries in the sample; None where they are no sample."""
        return self.queries if self.is_sample else None


class Scenario(Protocol):
    """The shape of a run's queries over time.

    `takes` are the options that only some scenarios have, and that this one takes. The client is judged by its lateness
    where `is_paced`: the queries are due one by one.
    """

    takes: frozenset[str]
    is_paced: bool

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """The queries of a run with samples 0 to `samples` - 1; raises `ConfigError` for a run without queries."""

    def pacing(self, config: RunConfig, schedule: Schedule) -> Pacing:
        """The rule by which the queries of the schedule leave."""

    def score(self, record: Record, config: RunConfig) -> Score:
        """The score of the queries that were issued."""
