"""Search for the highest rate that meets the objective."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import msgspec

from sluice.loadgen.records.early_stopping import CONFIDENCE
from sluice.loadgen.records.statistics import QueryStatistics
from sluice.loadgen.records.validity import too_busy
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.models.errors import ConfigError

MAX_PROBES = 40
RATE_LIMIT = 50_000.0
"""Default bound of the search: more than a client can send. A simulated target may have no limit to find."""
DURATION_S = 30.0
"""Default bound of a probe."""
MOST_QUERIES = 1_000_000
LONGEST_S = 24 * 3600.0
"""Bounds of a probe whose length follows from the precision: its queries, and the seconds in which they are due."""
CONFIRMATIONS = 2
"""Runs on fresh seeds, as long as a run may be, that the answer has to pass."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a search: rates in queries a second, `precision` relative, and the bounds of a probe in seconds.

    A probe takes `duration_s` at most, or as long as `queries` take at its rate if that is longer. One that only
    narrows the search is confirmed from `min_duration_s` on.
    """

    start: float = 100.0
    precision: float = 0.02
    max_rate: float = RATE_LIMIT
    max_probes: int = MAX_PROBES
    duration_s: float = DURATION_S
    min_duration_s: float = 0.0
    queries: int = 0

    def longest_s(self, rate: float) -> float:
        """The most seconds that a probe at a rate takes."""
        return max(self.duration_s, min(self.queries / rate, LONGEST_S))

    def check(self) -> None:
        """Raise `ConfigError` for settings with which a search cannot end."""
        if not 0 < self.precision < 1:
            raise ConfigError(f"--precision: expected a number between 0 and 100 %, got {self.precision * 100:g} %")
        if self.max_probes < 1:
            raise ConfigError(f"--max-probes: expected at least 1, got {self.max_probes}")
        if not 0 < self.start < math.inf:
            raise ConfigError(f"--start: expected above 0, got {self.start:g}/s")
        if not self.start <= self.max_rate:
            raise ConfigError(f"--start: expected at most --max-rate ({self.max_rate:g}/s), got {self.start:g}/s")
        if not 0 <= self.min_duration_s <= self.duration_s:
            limit = f"at most --duration ({self.duration_s:g} s)"
            raise ConfigError(f"--min-duration: expected {limit}, got {self.min_duration_s:g} s")


def shortest_probe_s(warmup_s: float, slo_ms: float | None, precision: float) -> float:
    """Seconds after which a rate that is too high by `precision` shows.

    Each second such a rate adds `precision` seconds of work to a queue that is empty at first, and the queries miss
    once the queue is as long as the objective.
    """
    return warmup_s + (slo_ms or 0.0) / 1e3 / precision


def resolution(queries: int) -> float:
    """By how much two rates have to differ, relative, for runs with `queries` queries to tell them apart.

    The number of Poisson arrivals in a time varies by its root. So does the load that a run really has: rates that
    differ by less change places from seed to seed, which `CONFIDENCE` rules out here.
    """
    return NormalDist().inv_cdf(CONFIDENCE) / math.sqrt(queries)


def queries_to_resolve(precision: float) -> int:
    """The fewest queries of a run with this `resolution`, as far as `MOST_QUERIES` goes."""
    return min(math.ceil((resolution(1) / precision) ** 2), MOST_QUERIES)


class ProbePlan(NamedTuple):
    """One run that a search asks for; a run that `confirms` is played to its end, and the others until they pass."""

    number: int
    rate: float
    confirms: bool


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a search at one rate, without the data of its queries; `reasons` say why it is invalid."""

    rate: float
    seed: int
    confirms: bool
    verdict: Verdict
    reasons: list[str]
    metrics: QueryStatistics
    too_short: bool
    client_limited: bool
    too_busy: bool
    """True when the client was too late even without load."""
    interrupted: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: RunResult, confirms: bool) -> "Probe":
        """The probe that a run was."""
        return cls(
            rate=result.config.rate,
            seed=result.config.seed,
            confirms=confirms,
            verdict=result.verdict,
            reasons=result.invalid,
            metrics=result.metrics,
            too_short=result.too_short,
            client_limited=bool(result.client_limits),
            too_busy=too_busy(result.config.slo_ms, result.baseline_lateness_ms),
            interrupted=result.interrupted,
            notes=result.notes,
        )

    @property
    def passed(self) -> bool:
        """True when the run confirms that the rate meets the objective."""
        return self.verdict is Verdict.MET


class MaxRate(msgspec.Struct, frozen=True):
    """The highest rate that passed and the lowest rate above it that did not; None where the search found none.

    The rate is `confirmed` when it has passed on `CONFIRMATIONS` fresh seeds as well.
    """

    rate: float | None
    failed_rate: float | None
    confirmed: bool
    probes: tuple[Probe, ...]

    @property
    def confirming_queries(self) -> int:
        """The queries of the shortest run that confirms the rate; 0 without any."""
        queries = [probe.metrics.queries for probe in self.probes if probe.confirms and probe.rate == self.rate]
        return min(queries, default=0)

    @property
    def client_limited(self) -> bool:
        """True when the failed rate exceeded the client's capacity, which says nothing about the target."""
        failed = [probe for probe in self.probes if probe.rate == self.failed_rate and not probe.passed]
        return bool(failed) and failed[-1].client_limited

    @property
    def too_short(self) -> bool:
        """True when no rate passed, and runs at the last one were too short to confirm any."""
        return self.rate is None and self.probes[-1].too_short and not self.probes[-1].interrupted


def find_max(probe: Callable[[ProbePlan], Probe], settings: SearchSettings) -> MaxRate:
    """Double from the start until a rate fails (halve until one passes), bisect on the logarithm, and confirm.

    The search narrows the bracket to the precision. The rate that it found then has to pass on `CONFIRMATIONS` fresh
    seeds; where it does not, the next rate is lower by the precision. A run that its client limited says nothing about
    the target, and is repeated once. The search also ends after `max_probes` probes, of which some are kept for the
    confirmation, with an interrupted probe, where the rates left to try are too low for a run to have enough queries,
    and where the client is too late for any rate. It is deterministic: equal answers of `probe` make equal searches.
    """
    settings.check()
    search = _Search(probe, settings)
    search.bracket()
    confirmed = search.confirm()
    return MaxRate(search.low, search.high, confirmed, tuple(search.probes))


class _Search:
    """The state of a search: the bracket from `low`, which passed, to `high`, which failed."""

    def __init__(self, probe: Callable[[ProbePlan], Probe], settings: SearchSettings) -> None:
        self._probe = probe
        self._settings = settings
        self._ended = False
        self.low: float | None = None
        self.high: float | None = None
        self.probes: list[Probe] = []

    def bracket(self) -> None:
        """Narrow the bracket to the precision."""
        settings = self._settings
        rate = settings.start
        most = max(1, settings.max_probes - CONFIRMATIONS)
        while len(self.probes) < most and not self._narrow():
            probe = self._run(rate, most, confirms=False)
            if probe.interrupted:
                self._ended = True
                return
            if probe.passed:
                self.low = rate
                if rate >= settings.max_rate:
                    return
            else:
                self.high = rate
                if self.low is None and (probe.too_short or (probe.client_limited and probe.too_busy)):
                    return
            rate = min(self._next_rate(), settings.max_rate)

    def confirm(self) -> bool:
        """Confirm the lower end of the bracket, and step down until that succeeds."""
        rate = self.low
        while rate is not None:
            failed = False
            for _ in range(CONFIRMATIONS):
                if self._ended or len(self.probes) >= self._settings.max_probes:
                    return False
                probe = self._run(rate, self._settings.max_probes, confirms=True)
                self._ended = probe.interrupted
                if not probe.passed:
                    failed = not probe.interrupted
                    break
            else:
                self.low = rate
                return True
            if failed:  # on fresh seeds, which overrules the probes that passed at this rate
                self.high = rate
                self.low = max(
                    (probe.rate for probe in self.probes if probe.passed and probe.rate < rate), default=None
                )
                rate /= 1 + self._settings.precision
        return False

    def _run(self, rate: float, most: int, *, confirms: bool) -> Probe:
        """Run a probe, and once more where its client limited it."""
        probe = self._once(rate, confirms)
        if probe.client_limited and not probe.passed and not probe.interrupted and len(self.probes) < most:
            probe = self._once(rate, confirms)
        return probe

    def _once(self, rate: float, confirms: bool) -> Probe:
        probe = self._probe(ProbePlan(len(self.probes), rate, confirms))
        self.probes.append(probe)
        return probe

    def _narrow(self) -> bool:
        precision = self._settings.precision
        return self.low is not None and self.high is not None and self.high / self.low <= 1 + precision

    def _next_rate(self) -> float:
        if self.low is None:
            assert self.high is not None
            return self.high / 2
        return self.low * 2 if self.high is None else math.sqrt(self.low * self.high)
