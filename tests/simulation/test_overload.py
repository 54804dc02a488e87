"""Overload: of what is admitted nearly all is answered in time, and that is nearly all that can be.

The rows are those of `benchmarks.support.overload`, which defines the bound.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from benchmarks.support.overload import GOOD, HOST, LIMITS, TARDY, Machine, Measured, Row, Stage, line, measure, missed
from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.interface.decisions import AnyDecision, Settlement
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import CERTAINTY, S, chain, model, single, spec_of

FULL = 16
STAGE = Stage()
FULL_S = STAGE.seconds(FULL)
PEAK = FULL / FULL_S
"""Rows a second of a partition in full batches."""
EVEN, POISSON, BURSTS = 0, 1, 3
"""Arrivals by the coefficient of variation of the gaps between them."""
ROWS: dict[tuple[str, float], list[tuple[float, float]]] = {
    ("single", 2.2): [(1.1, 0), (1.1, 0.1), (2, 0), (10, 0)],
    ("single", 5.5): [(1.1, 0), (1.1, 0.1), (2, 0), (2, 0.1), (10, 0), (10, 0.1)],
    ("chain", 2.2): [(1.1, 0), (2, 0), (10, 0)],
    ("chain", 5.5): [(2, 0), (10, 0)],
    ("cascade", 2.2): [(1.1, 0), (2, 0), (2, 0.1)],
    ("cascade", 5.5): [(1.1, 0), (1.1, 0.1), (2, 0), (2, 0.1)],
    ("two models", 2.2): [(1.1, 0), (2, 0), (10, 0)],
    ("two models", 5.5): [(1.1, 0), (1.1, 0.1), (2, 0), (2, 0.1), (10, 0)],
    ("two kinds", 2.2): [(1.1, 0), (1.1, 0.1), (2, 0)],
    ("two kinds", 5.5): [(1.1, 0), (1.1, 0.1), (2, 0)],
}
"""The factors on the peak, with noises, by case and objective in full batches."""


class Load(msgspec.Struct):
    """Requests of one row: how many a second, their objective, and how evenly they come."""

    rate: float
    objective_s: float
    cv: float = POISSON

    def times_ns(self, until_ns: int, source: random.Random) -> list[int]:
        mean_ns = S / self.rate
        times, now_ns = [], 1.0
        while now_ns < until_ns:
            times.append(int(now_ns))
            now_ns += source.gammavariate(self.cv**-2, mean_ns * self.cv**2) if self.cv else mean_ns
        return times


class Answers(msgspec.Struct):
    """Requests a second that were offered and answered in time, and the share of the admitted that were not."""

    offered: float
    in_time: float
    late: float


def simulate(
    pipelines: Sequence[PipelineConfig],
    loads: Mapping[str, Load],
    late: Late,
    noise: float = 0,
    *,
    partitions: int = 1,
    length_s: float = 5,
    table: LatencyTable | None = None,
) -> dict[str, Answers]:
    """Answers by pipeline after a second; of as many partitions as models, each holds a model of its own."""
    pipelines = [msgspec.structs.replace(each, late=late) for each in pipelines]
    keys = sorted({stage.model for each in pipelines for stage in each.stages if stage.model is not None})
    names = [f"p{number}" for number in range(partitions)]
    spec = spec_of(
        [model(key, FULL, confidences=(CERTAINTY,)) for key in keys],
        pipelines,
        partitions=[PartitionConfig(name, "quick") for name in names],
        limits=LIMITS,
    )
    source = random.Random(1)
    events = sorted(
        (at_ns, name, round(load.objective_s * S))
        for name, load in loads.items()
        for at_ns in load.times_ns(int(length_s * S), source)
    )
    arrivals = [
        (at_ns, RequestArrived(number, name, 1, at_ns + objective_ns))
        for number, (at_ns, name, objective_ns) in enumerate(events)
    ]
    counts: dict[str, Counter[Outcome]] = {name: Counter() for name in loads}

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Settlement):
                arrived_ns, arrival = arrivals[decision.request]
                if arrived_ns >= S:
                    counts[arrival.pipeline][decision.outcome] += 1

    scheduler = Scheduler(spec)
    held = {name: [keys[number]] if partitions == len(keys) else keys for number, name in enumerate(names)}
    tables = {name: dict.fromkeys(mine, table or STAGE.table(1)) for name, mine in held.items()}
    simulator = Simulator(scheduler, Machine(tables, noise, random.Random(2)), observe, HOST)
    for name in names:
        simulator.at(0, PartitionReady(name, tables[name]))
    simulator.run(arrivals)
    check_invariants(scheduler)
    return {name: _answers(count, length_s - 1) for name, count in counts.items()}


def _answers(count: Counter[Outcome], seconds: float) -> Answers:
    in_time = count[Outcome.COMPLETED]
    late = count[Outcome.COMPLETED_LATE] + count[Outcome.EVICTED_DEADLINE]
    return Answers(count.total() / seconds, in_time / seconds, late / max(in_time + late, 1))


# -- rows of the table


@pytest.mark.parametrize("late", Late)
@pytest.mark.parametrize(
    ("case", "objective", "factor", "noise"), [(*place, *row) for place, rows in ROWS.items() for row in rows]
)
def test_what_is_answered_in_time_is_near_the_bound(
    case: str, objective: float, factor: float, noise: float, late: Late
) -> None:
    row = Row(case, objective, factor, late, noise)
    # With noise all requests of a batch are late or none is, so there have to be some hundred batches.
    measured = measure(row, requests=16_000 if noise else 4_000)
    assert measured.share >= GOOD, line(row, measured)
    assert measured.tardy <= TARDY, line(row, measured)


@pytest.mark.parametrize("factor", [0.8, 1.1])
@pytest.mark.parametrize("case", ["single", "two models"])
@pytest.mark.parametrize("objective", [1.4, 2.2])
def test_no_scheduler_answers_more_than_the_clairvoyant(case: str, objective: float, factor: float) -> None:
    measured = measure(Row(case, objective, factor, Late.SERVE, 0), requests=2_000)
    assert measured.clairvoyant is not None
    assert measured.good <= measured.clairvoyant <= measured.offered


@pytest.mark.parametrize(
    ("case", "objective", "factor"), [("single", 2.2, 2), ("single", 20, 0.8), ("two kinds", 2.2, 0.8)]
)
def test_rows_without_a_clairvoyant_have_the_fluid_bound(case: str, objective: float, factor: float) -> None:
    measured = measure(Row(case, objective, factor, Late.SERVE, 0), requests=200)
    assert measured.clairvoyant is None
    assert measured.bound == measured.fluid


def test_a_row_names_the_goals_that_it_misses() -> None:
    below, above = (Row("single", 2.2, factor, Late.SERVE, 0) for factor in (0.8, 1.1))
    measured = Measured(offered=100, good=90, late=2, fluid=99, clairvoyant=97, batch=5, best="9")
    assert missed(below, measured) == ["goodput", "late", "refused"]
    assert missed(above, measured) == ["goodput", "late"]
    assert line(below, measured).endswith("92.8%   2.2%    5.0%   5.0      9 * goodput, late, refused")
    met = msgspec.structs.replace(measured, good=96, late=0)
    assert missed(below, met) == []
    assert line(below, met).endswith("99.0%   0.0%    1.0%   5.0      9")


@pytest.mark.parametrize("late", Late)
@pytest.mark.parametrize("cv", [EVEN, POISSON])
def test_below_the_peak_nearly_nothing_is_refused(cv: float, late: Late) -> None:
    answers = simulate([single("a:1", name="p")], {"p": Load(0.8 * PEAK, 2.2 * FULL_S, cv)}, late, 0.1)["p"]
    assert answers.in_time >= 0.99 * answers.offered
    assert answers.late <= TARDY


# -- deep chains

DEEP = chain(*(f"{letter}:1" for letter in "abcdefgh"), name="p")


@pytest.mark.parametrize("late", Late)
@pytest.mark.parametrize("cv", [EVEN, POISSON])
@pytest.mark.parametrize("batches", [1.4, 2.2])
def test_a_deep_chain_with_a_third_of_its_load_answers_all_in_time(batches: float, cv: float, late: Late) -> None:
    load = Load(PEAK / 8 / 3, batches * 8 * FULL_S, cv)
    answers = simulate([DEEP], {"p": load}, late, 0.03, length_s=30)["p"]
    assert answers.in_time >= 0.995 * answers.offered


@pytest.mark.parametrize("late", Late)
def test_a_deep_chain_of_partitions_with_a_third_of_its_load_answers_all_in_time(late: Late) -> None:
    load = Load(PEAK / 3, 1.4 * 8 * FULL_S)
    answers = simulate([DEEP], {"p": load}, late, 0.03, partitions=8)["p"]
    assert answers.in_time >= 0.995 * answers.offered


# -- two models on one partition

TWO = [single("a:1", name="modest"), single("b:1", name="hog")]


@pytest.mark.parametrize("late", Late)
def test_two_overloaded_models_share_a_partition_evenly(late: Late) -> None:
    loads = dict.fromkeys(("modest", "hog"), Load(PEAK, 5.5 * FULL_S))
    answers = simulate(TWO, loads, late)
    assert sum(each.in_time for each in answers.values()) >= GOOD * PEAK
    assert answers["modest"].in_time == pytest.approx(answers["hog"].in_time, rel=0.1)
    assert all(each.late <= TARDY for each in answers.values())


@pytest.mark.parametrize("late", Late)
@pytest.mark.parametrize(("batches", "cv"), [(2.2, EVEN), (2.2, POISSON), (5.5, POISSON), (20, BURSTS)])
def test_a_hog_takes_nothing_from_a_modest_model(batches: float, cv: float, late: Late) -> None:
    objective_s = batches * FULL_S
    loads = {"modest": Load(PEAK / 4, objective_s, cv), "hog": Load(10 * PEAK, objective_s)}
    answers = simulate(TWO, loads, late, length_s=3)
    assert answers["modest"].in_time >= 0.98 * answers["modest"].offered
    assert sum(each.in_time for each in answers.values()) >= 0.9 * PEAK
    assert answers["hog"].late <= TARDY


@pytest.mark.parametrize("partitions", [3, 5, 8])
@pytest.mark.parametrize("late", Late)
def test_equal_partitions_run_the_batches_that_their_objective_allows(partitions: int, late: Late) -> None:
    # Eight rows leave 15 of 42 ms to gather them, in which far more come. Single rows would be in time sooner and take
    # nearly as long: if each opened a batch as soon as that, all batches would have about four rows.
    table = LatencyTable.from_ms({1: 20, 2: 21, 4: 23, 8: 27, 16: 35})
    rate = 0.8 * partitions * 16 / 0.035
    loads = {"p": Load(rate, 0.042, EVEN)}
    answers = simulate([single("m:1", name="p")], loads, late, partitions=partitions, table=table)["p"]
    assert answers.in_time > 0.93 * partitions * 8 / 0.027
    assert answers.late < 0.01
