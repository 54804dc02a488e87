"""The result of a run."""

import enum
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.early_stopping import confirmed
from sluice.loadgen.records.figures import Figures, StreamLabel, figures
from sluice.loadgen.records.interim import EarlyVerdict
from sluice.loadgen.records.outputs import Outputs
from sluice.loadgen.records.record import Record
from sluice.loadgen.records.server_metrics import ServerReport
from sluice.loadgen.records.statistics import QueryStatistics
from sluice.loadgen.records.validity import TOO_SHORT, client_limits, too_short
from sluice.loadgen.scenarios.base import Score
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.table import SCENARIOS

Predictions = npt.NDArray[np.int64]


class Verdict(enum.StrEnum):
    """Verdict of a run on the objective, by MLPerf's early-stopping test."""

    MET = "met"
    """The test confirms that the percentile meets the objective."""
    NOT_CONFIRMED = "not confirmed"
    """Enough queries met the objective, but the run needs more queries to confirm it with this number of misses."""
    MISSED = "missed"
    INVALID = "invalid"
    """The run says nothing about the target."""


@dataclass(frozen=True)
class RunResult:
    """The result of one run.

    `record` holds one row a query, warm-up included. `predictions` and `expected` have shape (queries, rows), with -1
    for a missing one; they are None without labels and in a simulation. `start_ns` is the start of a live run on the
    monotonic clock. `client_cpu_share` is the share of a core that the client used while it sent queries, None for a
    run of less than 0.1 s, and `baseline_lateness_ms` the 99th percentile of its lateness without load; both are None
    in a simulation. `decision` is what ended the run before its schedule, if anything did. `outputs` are those that the
    run was to keep, and `sample_count` is the number of samples that it drew from. `invalid` lists the reasons
    why the run is invalid, of which `lost` are those about client processes that did not live to its end, and `notes`
    what a reader of the figures has to know about a simulation.
    """

    config: RunConfig
    schedule_digest: str
    record: Record
    metrics: QueryStatistics
    score: Score
    invalid: list[str]
    lost: tuple[str, ...] = ()
    interrupted: bool = False
    simulated: bool = False
    start_ns: int = 0
    client_cpu_us_per_query: float | None = None
    client_cpu_share: float | None = None
    baseline_lateness_ms: float | None = None
    decision: EarlyVerdict | None = None
    server: ServerReport | None = None
    predictions: Predictions | None = None
    expected: Predictions | None = None
    outputs: Outputs = field(default_factory=dict)
    sample_count: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def figures(self) -> Figures:
        """Series, groups, intervals, times by stage and cost, computed from the record when they are first used."""
        return figures(
            self.record,
            self.config.percentile,
            self.config.warmup_s,
            seed=self.config.seed,
            streams=self.streams,
            server_cost=None if self.server is None else self.server.cost,
            price_per_hour=self.config.price_per_hour,
        )

    @property
    def streams(self) -> tuple[StreamLabel, ...]:
        """The streams of the mix, in the order of their numbers in the record; empty without a mix."""
        if self.config.mix is None:
            return ()
        return tuple(StreamLabel(stream.name, stream.model) for stream in self.config.mix.streams)

    @property
    def client_limits(self) -> list[str]:
        """The reasons of `invalid` that a longer run would not cure: the client fell short of the schedule."""
        limits = client_limits(
            self.metrics,
            self.config.slo_ms,
            self.client_cpu_share,
            self.baseline_lateness_ms,
            is_paced=SCENARIOS[self.config.scenario].is_paced,
        )
        return [*self.lost, *limits]

    @property
    def limits(self) -> list[str]:
        """The reasons of `invalid` for which the figures are not the target's; more queries would not help."""
        return [reason for reason in self.invalid if not (reason.startswith(TOO_SHORT) or reason in self.score.unmet)]

    def without_rows(self) -> "RunResult":
        """The same result without its per-query data, which may be large."""
        return replace(self, record=self.record.head(0), predictions=None, expected=None, outputs={})

    @property
    def too_short(self) -> bool:
        """True when the run has too few queries to confirm the percentile, even without a miss."""
        return too_short(self.score.sample, self.config.percentile, self.decision)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the objective."""
        if self.invalid:
            return Verdict.INVALID
        score, percentile = self.score, self.config.percentile
        attained = score.attainment * 100 >= percentile
        if confirmed(score.queries, score.misses, percentile) if score.is_sample else attained:
            return Verdict.MET
        return Verdict.NOT_CONFIRMED if attained else Verdict.MISSED

    @property
    def slo_met(self) -> bool:
        """True when a valid run confirms the percentile."""
        return self.verdict is Verdict.MET

    @property
    def answered_rows(self) -> int:
        """Rows with both a prediction and a label, warm-up included."""
        if self.predictions is None or self.expected is None:
            return 0
        return int(((self.predictions >= 0) & (self.expected >= 0)).sum())

    @property
    def accuracy(self) -> float | None:
        """Share of the answered rows with the expected class; None when no row was answered."""
        if self.predictions is None or self.expected is None or not self.answered_rows:
            return None
        right = (self.predictions == self.expected) & (self.expected >= 0)
        return float(right.sum()) / self.answered_rows
