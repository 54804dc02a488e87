"""The statistics of a comparison: paired ratios of figures, their intervals, and the verdict.

A figure differs from run to run with the arrivals and with chance. Both sides of a pair have the same arrivals and
samples (common random numbers), so what the arrivals do cancels in their ratio. What is left is chance, and the ratios
of several pairs show how much of it there is.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from sluice.loadgen.comparison.compared_run import FIGURES, ComparedFigure, ComparedRun
from sluice.loadgen.records.bootstrap import Floats, Interval, ratio_interval
from sluice.models.errors import ConfigError

MIN_PAIRS = 3
CONFIDENCE = 0.99
"""Confidence of each interval. Of four figures of two equal targets, one then differs by chance in 4 % of cases."""
_LARGEST_RATIO = 1e6
"""Ratios are bounded, so that runs without answers or without good ones can be compared."""

Pair = tuple[ComparedRun, ComparedRun]


class ComparisonVerdict(enum.StrEnum):
    """Verdict on a target or on a figure of it, compared with the first target."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """No difference beyond the threshold is proved."""


@dataclass(frozen=True)
class Contrast:
    """One figure of two targets.

    `first` and `second` are medians over the runs, and `ratio` is the geometric mean of second / first over the pairs
    of runs. `undecided` is True where the interval reaches beyond the threshold although no difference is proved: more
    pairs would tell.
    """

    figure: ComparedFigure
    first: float
    second: float
    ratio: float
    interval: Interval
    verdict: ComparisonVerdict
    undecided: bool


@dataclass(frozen=True)
class Comparison:
    """Two targets, compared over pairs of runs."""

    pairs: Sequence[Pair]
    contrasts: tuple[Contrast, ...]

    @property
    def verdict(self) -> ComparisonVerdict:
        """Worse if any figure is worse; else better if any is better."""
        verdicts = {contrast.verdict for contrast in self.contrasts}
        for verdict in (ComparisonVerdict.WORSE, ComparisonVerdict.BETTER):
            if verdict in verdicts:
                return verdict
        return ComparisonVerdict.SAME

    @property
    def limits(self) -> list[str]:
        """The reasons why runs say nothing about their target."""
        return [f"{run.source}: {limit}" for pair in self.pairs for run in pair for limit in run.limits]


def compare(first: Sequence[ComparedRun], second: Sequence[ComparedRun], threshold: float) -> Comparison:
    """Compare two targets by their runs; a difference counts from `threshold` on (0.05: 5 %).

    Runs of equal schedules make a pair. Raises `ConfigError` for less than `MIN_PAIRS` pairs, a run without a partner,
    and pairs whose objective or warm-up differ.
    """
    pairs = _pairs(first, second)
    if len(pairs) < MIN_PAIRS:
        raise ConfigError(
            f"compare: {len(pairs)} pair{'s' if len(pairs) > 1 else ''} of runs; expected at least {MIN_PAIRS}, with "
            "seeds of their own, to tell a difference from chance"
        )
    return Comparison(pairs, tuple(_contrast(figure, pairs, threshold) for figure in FIGURES))


def _pairs(first: Sequence[ComparedRun], second: Sequence[ComparedRun]) -> list[Pair]:
    waiting: dict[str, list[ComparedRun]] = {}
    for run in second:
        waiting.setdefault(run.schedule_digest, []).append(run)
    pairs = []
    for run in first:
        partners = waiting.get(run.schedule_digest)
        if not partners:
            raise _no_partner(run, second)
        pairs.append((run, partners.pop(0)))
    for partners in waiting.values():
        if partners:
            raise _no_partner(partners[0], first)
    for one, other in pairs:
        for name, a, b in (("--slo-ms", one.slo_ms, other.slo_ms), ("--warmup", one.warmup_s, other.warmup_s)):
            if a != b:
                raise ConfigError(f"compare: {one.source} has {name} {a}, {other.source} has {b}; expected the same")
    return pairs


def _no_partner(run: ComparedRun, others: Sequence[ComparedRun]) -> ConfigError:
    known = ", ".join(sorted({other.schedule_digest[:16] for other in others}))
    return ConfigError(
        f"compare: {run.source} played schedule {run.schedule_digest[:16]}, the other side {known}; "
        "expected runs of the same schedules, one for one"
    )


def _contrast(figure: ComparedFigure, pairs: Sequence[Pair], threshold: float) -> Contrast:
    values = np.array([[figure.of(run.metrics) for run in pair] for pair in pairs])
    ratios = _ratios(values)
    interval = ratio_interval(ratios, seed=0, confidence=CONFIDENCE)
    ratio = float(np.exp(np.log(ratios).mean()))
    # Seen so that larger is better.
    gain = ratio if figure.better > 0 else 1 / ratio
    low, high = sorted(end**figure.better for end in (interval.low, interval.high))
    verdict = ComparisonVerdict.SAME
    if gain > 1 + threshold and low > 1:
        verdict = ComparisonVerdict.BETTER
    elif gain < 1 / (1 + threshold) and high < 1:
        verdict = ComparisonVerdict.WORSE
    reaches = low < 1 / (1 + threshold) or high > 1 + threshold
    return Contrast(
        figure,
        median(values[:, 0].tolist()),
        median(values[:, 1].tolist()),
        ratio,
        interval,
        verdict,
        undecided=verdict is ComparisonVerdict.SAME and reaches,
    )


def _ratios(values: Floats) -> Floats:
    """Second over first of each pair, (pairs, 2) to (pairs,); 1 where both are 0 or both infinite."""
    first, second = values[:, 0], values[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(first == second, 1.0, second / first)
    return np.asarray(np.clip(ratios, 1 / _LARGEST_RATIO, _LARGEST_RATIO), np.float64)
