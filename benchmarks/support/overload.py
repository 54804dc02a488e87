"""Overload in virtual time: the goodput of the scheduler by objective and offered rate, against the best there can be.

A full batch is the largest of a model. The objective of a row is given in full batches: in the time of one at each
stage that a request runs, on the faster kind of partition. The offered rate is given as a multiple of the peak,
which is the rate in full batches on all partitions. The time of a batch counts with its hand-off.

The fluid bound. A partition serves batch after batch of b rows, each in the time t(b), and can do so for as long as the
rows of a batch come soon enough: they come within b/λ at the rate λ that its partition is offered, and the first of
them is to be answered within the objective. So the bound is the highest rate b/t(b) with t(b) + b/λ <= objective, or
what is offered where that is less. A batch of one row waits for no other. All batches have the same rows, so where
arrivals come by chance a plan of batches that differ may do a little better.

- With noise, the condition has the time that 99 of 100 batches stay below (2.33 standard deviations of the sum over the
  stages), the rate the mean.
- The stages of a pipeline that share a partition run one after the other: t(b) is the sum of their times.
- In a cascade, n batches of b rows in the first stage may share one batch of those that escalate. The first row then
  waits for n first batches, or for the last of them to be gathered, whichever ends later, and for the second stage.
  How many escalate is a matter of chance, as the noise is. Where a third escalates, 1 request of 100 is late if 3
  batches of 100 are: the condition has the number and the times that 97 of 100 stay below.
- Two models on one partition take turns, each with half of what is offered.
- Partitions of two kinds are offered parts by their peaks, and their rates are added.

The clairvoyant. Near the peak, arrivals by chance leave time unused that no scheduler can get back. So a row of one
partition, offered at most 1.1 times its peak, also has the most requests of those measured that a plan with knowledge
of all arrivals answers in time (`benchmarks.support.clairvoyant`). The bound of the row is the lower of the two.

- A batch takes the mean time, and has to start as early as the condition of the fluid bound says. The stages of a
  pipeline are taken as one model. In a cascade this is done only where the best batches share no later stage. The plan
  does not know who escalates, so there it is a reference and no strict bound. With noise it is one too.
- The partition is free when the measuring starts, and may still be busy when it ends. That is worth up to one
  objective, so with long objectives the clairvoyant is above the fluid bound and says nothing. It is left out there.

A row has three goals: the share of the bound; of the admitted, few are late or evicted; below the peak, few are refused
of those that the clairvoyant, or else the fluid bound, would answer in time.
"""

import argparse
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import msgspec

from benchmarks.support.clairvoyant import most_in_time
from sluice.batcher.drivers.simulated_machine import Host
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, Settlement
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S, NS_PER_US
from tests.support.scheduling.builders import CERTAINTY, cascade, chain, model, single, spec_of

FULL = 16
MEASURED_MS = {1: 2.6, 2: 4.0, 4: 6.3, 8: 10.3, FULL: 18.2}
KINDS = {"quick": 1, "slow": 2}
"""The factor on the time of a batch, by kind of partition."""
HOST = Host(hand_off_ns=40 * NS_PER_US, between_ns=20 * NS_PER_US, return_ns=40 * NS_PER_US)
LIMITS = Limits(hand_off_ns=100 * NS_PER_US)
REQUESTS = 8_000
OBJECTIVES = (1.4, 2.2, 5.5, 20.0)
FACTORS = (0.8, 1.1, 2.0, 10.0)
NOISES = (0.0, 0.1)
GOOD, TARDY, REFUSED = 0.95, 0.01, 0.01
"""The goals: the least share of the bound, and the largest shares of the admitted that is late or evicted, and of the
offered that is refused below the peak without need.
"""
FORESEEN_FACTOR, FORESEEN_OBJECTIVE = 1.1, 10.0
"""The largest factor on the peak, and the longest objective in full batches, of the rows with a clairvoyant."""


def batch_ms(rows: float) -> float:
    """The time of a batch on a quick partition, interpolated between what was measured; in proportion below one row."""
    sizes = sorted(MEASURED_MS)
    if rows <= 1:
        return rows * MEASURED_MS[1]
    low, high = next(pair for pair in itertools.pairwise(sizes) if rows <= pair[1])
    return MEASURED_MS[low] + (MEASURED_MS[high] - MEASURED_MS[low]) * (rows - low) / (high - low)


class Stage(msgspec.Struct, frozen=True):
    """A model that takes `scale` times the measured times, and runs a `share` of the requests."""

    scale: float = 1
    share: float = 1

    def seconds(self, rows: float, slowdown: float = 1) -> float:
        """The time of a batch with its hand-off; less than a row stands for a batch that is not always there."""
        return batch_ms(rows) * self.scale * slowdown / 1000 + min(rows, 1) * LIMITS.hand_off_ns / NS_PER_S

    def most(self, rows: int, deviations: float) -> float:
        """The number of `rows` requests that run here if more do than usual, by that many standard deviations."""
        mean = self.share * rows
        return min(max(mean + deviations * math.sqrt(mean * (1 - self.share)), 1), FULL)

    def table(self, slowdown: float) -> LatencyTable:
        """A cell for each batch size, so that nothing is rounded up to a larger batch."""
        return LatencyTable.from_ms({rows: batch_ms(rows) * self.scale * slowdown for rows in range(1, FULL + 1)})


class Times(msgspec.Struct, frozen=True):
    """Seconds of a batch: of its first stage, of the later ones by the mean, with a row in each of them, and on top.

    `strays_s` is what noise and the number of rows that escalate may add.
    """

    first_s: float
    later_s: float
    whole_s: float
    strays_s: float


class Case(msgspec.Struct, frozen=True):
    """A number of `pipelines` alike, each of its own models, on partitions that hold all models."""

    stages: tuple[Stage, ...] = (Stage(),)
    pipelines: int = 1
    kinds: tuple[str, ...] = ("quick",)

    def keys(self, pipeline: int) -> list[str]:
        """The models of a pipeline."""
        return [f"m{pipeline}-{stage}:1" for stage in range(len(self.stages))]

    def spec(self, late: Late, objective_ns: int) -> SchedulerSpec:
        """Models, pipelines and partitions."""
        models = [
            model(key, FULL, confidences=(CERTAINTY,)) for each in range(self.pipelines) for key in self.keys(each)
        ]
        pipelines = [self._pipeline(each, late, objective_ns) for each in range(self.pipelines)]
        partitions = [PartitionConfig(f"p{number}", kind) for number, kind in enumerate(self.kinds)]
        return spec_of(models, pipelines, partitions=partitions, limits=LIMITS)

    def _pipeline(self, number: int, late: Late, objective_ns: int) -> PipelineConfig:
        keys, name = self.keys(number), f"pipeline{number}"
        if len(keys) == 1:
            built = single(keys[0], name=name)
        elif self.stages[-1].share == 1:
            built = chain(*keys, name=name)
        else:
            built = cascade(*keys, name=name, below=self.stages[-1].share)
        return msgspec.structs.replace(built, late=late, slo_ns=objective_ns)

    def full_s(self, slowdown: float = 1) -> float:
        """The time of one full batch at each stage that a request runs."""
        return sum(stage.share * stage.seconds(FULL, slowdown) for stage in self.stages)

    @property
    def peak(self) -> float:
        """Requests a second in full batches on all partitions."""
        return sum(FULL / self.full_s(KINDS[kind]) for kind in self.kinds)

    @property
    def deviations(self) -> float:
        """The standard deviations from the mean that leave out the share of batches that may be late."""
        return NormalDist().inv_cdf(1 - TARDY / min(stage.share for stage in self.stages))

    def fluid(self, offered: float, objective_s: float, noise: float) -> float:
        """The fluid bound: the most requests a second that can be answered in time, as the module says."""
        return min(offered, sum(self.best(kind, offered, objective_s, noise)[0] for kind in self.kinds))

    def best(self, kind: str, offered: float, objective_s: float, noise: float) -> tuple[float, int, int]:
        """The best rate of a partition, with the rows of a batch and how many of them share the later stages."""
        offered *= FULL / self.full_s(KINDS[kind]) / self.peak / self.pipelines
        widest = max((stage.share for stage in self.stages[1:]), default=FULL)
        best = 0.0, 0, 0
        for rows in range(1, FULL + 1):
            for batches in range(1, max(int(FULL / (widest * rows)), 1) + 1):
                times = self.times(kind, rows, batches, noise)
                gather_s = rows / offered if rows > 1 else 0.0
                wait_s = max(gather_s + batches * times.first_s, batches * gather_s + times.first_s)
                if wait_s + times.whole_s + times.strays_s <= objective_s:
                    best = max(best, (rows * batches / (batches * times.first_s + times.later_s), rows, batches))
        return best

    def times(self, kind: str, rows: int, batches: int, noise: float) -> Times:
        """The times of that many first batches, which share the later stages."""
        slowdown = KINDS[kind]
        first, *later = self.stages
        first_s = first.seconds(rows, slowdown)
        later_s = [stage.seconds(stage.share * rows * batches, slowdown) for stage in later]
        whole_s = [stage.seconds(max(stage.share * rows * batches, 1), slowdown) for stage in later]
        strays_s = [self.deviations * noise * each_s for each_s in (*[first_s] * batches, *whole_s)]
        strays_s += [
            stage.seconds(stage.most(rows * batches, self.deviations), slowdown) - each_s
            for stage, each_s in zip(later, whole_s, strict=True)
        ]
        return Times(first_s, sum(later_s), sum(whole_s), math.hypot(*strays_s))

    def foreseen(self, queues: Sequence[Sequence[int]], objective_ns: int, noise: float) -> int:
        """The most requests in time on the first partition, if the arrivals of each pipeline, in ns, are known."""
        times = [self.times(self.kinds[0], rows, 1, noise) for rows in range(1, FULL + 1)]
        mean_s = [each.first_s + each.later_s for each in times]
        most_s = [each.first_s + each.whole_s + each.strays_s for each in times]
        mean_ns, most_ns = (tuple(round(each_s * NS_PER_S) for each_s in all_s) for all_s in (mean_s, most_s))
        return most_in_time(tuple(map(tuple, queues)), mean_ns, most_ns, objective_ns)


CASES = {
    "single": Case(),
    "chain": Case((Stage(), Stage(), Stage())),
    "cascade": Case((Stage(), Stage(scale=3, share=0.33))),
    "two models": Case(pipelines=2),
    "two kinds": Case(kinds=("quick", "quick", "slow", "slow")),
}


class Row(msgspec.Struct, frozen=True):
    """A row of the table: `objective` in full batches, `factor` times the peak, `noise` as a part of a batch's time.

    `cv` is the coefficient of variation of the gaps between arrivals: 1 for Poisson arrivals, 0 for even ones.
    """

    case: str
    objective: float
    factor: float
    late: Late
    noise: float
    cv: float = 1


class Measured(msgspec.Struct, frozen=True):
    """Requests a second: offered, answered in time, and late or evicted; and the mean batch.

    `fluid` and `clairvoyant` are bounds of what is answered in time. `best` has the rows of the fluid bound's batches,
    by kind of partition: with "x3", three share one of what escalates.
    """

    offered: float
    good: float
    late: float
    fluid: float
    clairvoyant: float | None
    batch: float
    best: str

    @property
    def bound(self) -> float:
        """The lower bound of the two, in requests a second."""
        return self.fluid if self.clairvoyant is None else min(self.fluid, self.clairvoyant)

    @property
    def share(self) -> float:
        """The part of the bound that was answered in time."""
        return self.good / self.bound

    @property
    def tardy(self) -> float:
        """The part of the admitted that was answered late or evicted."""
        return self.late / max(self.good + self.late, 1)

    @property
    def refused(self) -> float:
        """The part of the offered that was refused, less what the clairvoyant, or else the fluid bound, refuses."""
        answered = self.fluid if self.clairvoyant is None else self.clairvoyant
        return max(answered - self.good - self.late, 0) / self.offered


def missed(row: Row, measured: Measured) -> list[str]:
    """The goals that a row misses."""
    goals = {
        "goodput": measured.share >= GOOD,
        "late": measured.tardy <= TARDY,
        "refused": row.factor >= 1 or measured.refused <= REFUSED,
    }
    return [name for name, is_met in goals.items() if not is_met]


class Machine:
    """Batches take the times of the tables with noise, and an answer escalates in the share that its stage says."""

    def __init__(self, tables: dict[str, dict[str, LatencyTable]], noise: float, generator: random.Random) -> None:
        self._tables, self._noise, self._random = tables, noise, generator

    def batch_ns(self, batch: DispatchBatch) -> int:
        factor = max(self._random.gauss(1, self._noise), 0.1) if self._noise else 1
        return round(self._tables[batch.partition][batch.model].latency_ns(batch.rows) * factor)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self._random.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


def arrivals(
    case: Case, rate: float, objective_ns: int, until_ns: int, cv: float, generator: random.Random
) -> Iterator[tuple[int, RequestArrived]]:
    """Requests of one row for the pipelines by chance."""
    shape, mean_ns = (1 / cv**2 if cv else 0.0), NS_PER_S / rate
    now_ns, request = 1.0, 0
    while now_ns < until_ns:
        pipeline = f"pipeline{generator.randrange(case.pipelines)}"
        yield int(now_ns), RequestArrived(request, pipeline, 1, int(now_ns) + objective_ns)
        now_ns += generator.gammavariate(shape, mean_ns / shape) if cv else mean_ns
        request += 1


def measure(row: Row, seed: int = 1, requests: int = REQUESTS) -> Measured:
    """Simulate a row: after a warm-up as many requests as asked for, if they last for two objectives.

    However many are refused, at least half as many as asked for can be served. An overloaded machine is warm once
    as much waits as can be served within the objective.
    """
    case = CASES[row.case]
    objective_s = row.objective * case.full_s()
    objective_ns = round(objective_s * NS_PER_S)
    rate = row.factor * case.peak
    measured_s = max(requests / rate, requests / 2 / case.peak, 20 * objective_s)
    filled_s = objective_s / (row.factor - 1) if row.factor > 1 else objective_s
    warm_ns = int(max(1.2 * filled_s, measured_s) * NS_PER_S)
    until_ns = warm_ns + int(measured_s * NS_PER_S)
    spec = case.spec(row.late, objective_ns)
    tables = {
        partition.name: {
            key: stage.table(KINDS[partition.kind])
            for each in range(case.pipelines)
            for key, stage in zip(case.keys(each), case.stages, strict=True)
        }
        for partition in spec.partitions
    }
    generator = random.Random(seed)
    came: list[int] = []
    queues: dict[str, list[int]] = defaultdict(list)
    outcomes: Counter[Outcome] = Counter()
    sizes: Counter[int] = Counter()

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, RequestArrived):
            came.append(now_ns)
            if now_ns >= warm_ns:
                queues[event.pipeline].append(now_ns)
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                if warm_ns <= now_ns < until_ns:
                    sizes[decision.rows] += 1
            elif isinstance(decision, Settlement) and came[decision.request] >= warm_ns:
                outcomes[decision.outcome] += 1

    machine = Machine(tables, row.noise, random.Random(generator.random()))
    simulator = Simulator(Scheduler(spec), machine, observe, HOST)
    for partition, held in tables.items():
        simulator.at(0, PartitionReady(partition, held))
    simulator.run(arrivals(case, rate, objective_ns, until_ns, row.cv, generator))
    good, late = outcomes[Outcome.COMPLETED], outcomes[Outcome.COMPLETED_LATE] + outcomes[Outcome.EVICTED_DEADLINE]
    offered = outcomes.total() / measured_s
    best = [case.best(kind, offered, objective_s, row.noise) for kind in dict.fromkeys(case.kinds)]
    clairvoyant = None
    if (
        row.factor <= FORESEEN_FACTOR
        and row.objective <= FORESEEN_OBJECTIVE
        and len(case.kinds) == 1
        and best[0][2] == 1
    ):
        clairvoyant = case.foreseen(list(queues.values()), objective_ns, row.noise) / measured_s
    return Measured(
        offered,
        good / measured_s,
        late / measured_s,
        case.fluid(offered, objective_s, row.noise),
        clairvoyant,
        sum(size * count for size, count in sizes.items()) / max(sizes.total(), 1),
        "+".join(f"{rows}x{batches}" if batches > 1 else f"{rows}" for _, rows, batches in best),
    )


def table() -> Iterator[Row]:
    """All rows."""
    for case, objective, factor, late, noise in itertools.product(CASES, OBJECTIVES, FACTORS, Late, NOISES):
        yield Row(case, objective, factor, late, noise)


HEADER = (
    f"{'case':<12}{'objective':>10}{'offered':>8}{'late':>7}{'noise':>6}  {'offered/s':>9}{'good/s':>8}{'fluid':>8}"
    f"{'clairvoyant':>12}{'of bound':>9}{'late':>7}{'refused':>8}{'batch':>6}{'best':>7}"
)


def line(row: Row, measured: Measured) -> str:
    """A row of the table as text; after a star, it has the goals that it misses."""
    clairvoyant = "" if measured.clairvoyant is None else f"{measured.clairvoyant:.0f}"
    goals = ", ".join(missed(row, measured))
    return (
        f"{row.case:<12}{row.objective:>10}{row.factor:>8}{row.late:>7}{row.noise:>6}  {measured.offered:>9.0f}"
        f"{measured.good:>8.0f}{measured.fluid:>8.0f}{clairvoyant:>12}{measured.share:>9.1%}{measured.tardy:>7.1%}"
        f"{f'{measured.refused:.1%}' if row.factor < 1 else '':>8}{measured.batch:>6.1f}{measured.best:>7}"
        f"{f' * {goals}' if goals else ''}"
    )


def main() -> None:
    """Print the rows that the options select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--objective", nargs="+", type=float, default=OBJECTIVES, help="in full batches")
    parser.add_argument("--factor", nargs="+", type=float, default=FACTORS, help="of the peak")
    parser.add_argument("--late", nargs="+", type=Late, choices=list(Late), default=list(Late))
    parser.add_argument("--noise", nargs="+", type=float, default=NOISES, help="as a part of a batch's time")
    parser.add_argument("--cv", nargs="+", type=float, default=(1.0,), help="of the gaps: 1 Poisson, 0 even, 3 bursts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="after the warm-up, a row")
    chosen = parser.parse_args()
    print(HEADER)
    for row in itertools.starmap(
        Row,
        itertools.product(chosen.case, chosen.objective, chosen.factor, chosen.late, chosen.noise, chosen.cv),
    ):
        print(line(row, measure(row, chosen.seed, chosen.requests)), flush=True)


if __name__ == "__main__":
    main()
