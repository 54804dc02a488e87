"""The goodput of a simple rule on one partition, with the best settings for each row: a yardstick beside the bounds.

The bounds of `benchmarks.support.overload` know all arrivals, or take them as even. This rule decides at the arrival,
as the scheduler does, and plans batch after batch of all stages. An arrival joins the last planned batch if all that is
planned stays in time. Otherwise it opens a batch if at least `least` requests like it could share that batch, or if the
partition is idle. `deviations` is how many standard deviations of the times are kept free, for noise and for the number
of rows that escalate. The best settings have the highest goodput of those that leave at most 1 % of the admitted late.
They are found by trying all for each row, while the scheduler has to find its own as it runs.

    python -m benchmarks.support.threshold_rule --case cascade --objective 1.4 2.2 --factor 0.8 1.1
"""

import argparse
import itertools
import math
import random
from typing import NamedTuple

from benchmarks.support.overload import CASES, FULL, KINDS, NOISES, TARDY, Case
from sluice.models.units import NS_PER_S

LEAST = (1, 2, 4, 6, 7, 8, 9, 10, 12)
DEVIATIONS = (0.5, 1.0, 1.5, 2.0)
REQUESTS = 16_000


class _Times(NamedTuple):
    """Seconds of the stages of a batch by its rows, with the mean and the variance of their sum."""

    first_s: list[float]
    second_s: list[float]
    mean_s: list[float]
    variance: list[float]


class _Batch(NamedTuple):
    opened_s: float
    deadlines: list[float]


def _times(case: Case, noise: float) -> _Times:
    slowdown = KINDS[case.kinds[0]]
    first, *later = case.stages
    first_s = [0.0, *(first.seconds(rows, slowdown) for rows in range(1, FULL + 1))]
    second_s = [0.0, *(sum(stage.seconds(rows, slowdown) for stage in later) for rows in range(1, FULL + 1))]
    share = later[0].share if later else 0.0
    means, variances = [], []
    for rows in range(FULL + 1):
        chances = [math.comb(rows, each) * share**each * (1 - share) ** (rows - each) for each in range(rows + 1)]
        mean = sum(chance * second_s[each] for each, chance in enumerate(chances))
        square = sum(chance * second_s[each] ** 2 for each, chance in enumerate(chances))
        means.append(first_s[rows] + mean)
        variances.append(square - mean**2 + noise**2 * (first_s[rows] ** 2 + mean**2))
    return _Times(first_s, second_s, means, variances)


class _Partition:
    """Runs planned batches in turn, stage after stage, and counts the requests that are answered in time and late."""

    def __init__(self, case: Case, times: _Times, noise: float, deviations: float) -> None:
        self._share = case.stages[-1].share if len(case.stages) > 1 else 0.0
        self._times, self._noise, self._deviations = times, noise, deviations
        self._random = random.Random(99)
        self._free_s = self._expected_s = self._variance = 0.0
        self._second: tuple[int, list[float]] | None = None  # rows of the first stage, and those that escalated
        self.planned: list[_Batch] = []
        self.good = self.late = 0

    def is_idle(self, now_s: float) -> bool:
        return self._free_s <= now_s and not self.planned

    def advance(self, now_s: float) -> None:
        while self._free_s <= now_s:
            if self._second is not None:
                (_, escalated), self._second = self._second, None
                self._run(self._free_s, self._times.second_s[len(escalated)], escalated)
            elif self.planned:
                batch = self.planned.pop(0)
                rows = len(batch.deadlines)
                escalated = [each for each in batch.deadlines if self._random.random() < self._share]
                answered = [each for each in batch.deadlines if each not in escalated]
                self._run(max(self._free_s, batch.opened_s), self._times.first_s[rows], answered)
                self._second = rows, escalated
            else:
                return

    def ends(self, now_s: float) -> tuple[float, float]:
        """When all that is planned ends, with the variance of that; infinite if a batch would be late."""
        end_s, variance = (max(self._expected_s, now_s), self._variance) if self._free_s > now_s else (now_s, 0.0)
        if self._second is not None:
            rows = self._second[0]
            end_s += self._times.mean_s[rows] - self._times.first_s[rows]
            variance += self._times.variance[rows]
        for batch in self.planned:
            end_s, variance = (
                end_s + self._times.mean_s[len(batch.deadlines)],
                variance + self._times.variance[len(batch.deadlines)],
            )
            if self.latest(end_s, variance) > batch.deadlines[0]:
                return math.inf, 0.0
        return end_s, variance

    def latest(self, end_s: float, variance: float) -> float:
        return end_s + self._deviations * math.sqrt(variance)

    def room(self, now_s: float, deadline_s: float) -> int:
        """The rows of the largest batch behind all others that is in time for a request."""
        end_s, variance = self.ends(now_s)
        times = self._times
        fitting = [
            rows
            for rows in range(1, FULL + 1)
            if self.latest(end_s + times.mean_s[rows], variance + times.variance[rows]) <= deadline_s
        ]
        return max(fitting, default=0)

    def _run(self, start_s: float, took_s: float, answered: list[float]) -> None:
        factor = max(self._random.gauss(1, self._noise), 0.1) if self._noise else 1.0
        self._expected_s, self._variance = start_s + took_s, (self._noise * took_s) ** 2
        self._free_s = start_s + took_s * factor
        good = sum(self._free_s <= deadline_s for deadline_s in answered)
        self.good += good
        self.late += len(answered) - good


def goodput(
    case: Case, objective_s: float, rate: float, noise: float, least: int, deviations: float, requests: int
) -> tuple[float, float]:
    """The requests a second that are in time, and the share of the admitted that is late."""
    generator = random.Random(1)
    partition = _Partition(case, _times(case, noise), noise, deviations)
    planned, now_s = partition.planned, 0.0
    for _ in range(requests):
        now_s += generator.expovariate(rate)
        partition.advance(now_s)
        deadline_s = now_s + objective_s
        if planned and len(planned[-1].deadlines) < FULL:
            planned[-1].deadlines.append(deadline_s)
            if partition.ends(now_s)[0] < math.inf:
                continue
            planned[-1].deadlines.pop()
        is_idle = partition.is_idle(now_s)
        if partition.room(now_s, deadline_s) >= (1 if is_idle else least):
            planned.append(_Batch(now_s, [deadline_s]))
            partition.advance(now_s)
    return partition.good / now_s, partition.late / max(partition.good + partition.late, 1)


def main() -> None:
    """Print the rows that the options select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("single", "cascade"), default="cascade")
    parser.add_argument("--objective", nargs="+", type=float, default=(1.4, 2.2), help="in full batches")
    parser.add_argument("--factor", nargs="+", type=float, default=(0.8, 1.1), help="of the peak")
    parser.add_argument("--noise", nargs="+", type=float, default=NOISES, help="as a part of a batch's time")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    chosen = parser.parse_args()
    case = CASES[chosen.case]
    print(
        f"{'objective':>9}{'offered':>8}{'noise':>6}{'fluid':>8}{'good/s':>8}{'of fluid':>9}{'late':>7}{'least':>6}"
        f"{'deviations':>11}"
    )
    for objective, factor, noise in itertools.product(chosen.objective, chosen.factor, chosen.noise):
        objective_s, rate = round(objective * case.full_s() * NS_PER_S) / NS_PER_S, factor * case.peak
        tried = [
            (*goodput(case, objective_s, rate, noise, least, deviations, chosen.requests), least, deviations)
            for least, deviations in itertools.product(LEAST, DEVIATIONS)
        ]
        good, late, least, deviations = max((each for each in tried if each[1] <= TARDY), default=(0.0, 1.0, 0, 0.0))
        fluid = case.fluid(rate, objective_s, noise)
        print(
            f"{objective:>9}{factor:>8}{noise:>6}{fluid:>8.0f}{good:>8.0f}{good / fluid:>9.1%}{late:>7.1%}{least:>6}"
            f"{deviations:>11}",
            flush=True,
        )


if __name__ == "__main__":
    main()
