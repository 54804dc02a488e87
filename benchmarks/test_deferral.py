"""Guarded deferral (objective `cost`) against the eager policy (`latency`), on models that neither was tuned for."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.conftest import Report
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import (
    ConfidenceSpec,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, CompleteRequest, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals
from sluice.models.pipelines.pipeline import Confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

Times = npt.NDArray[np.int64]

SEEDS = (20_261, 20_262)
BEGIN = datetime(2026, 1, 1)
REQUESTS = 5_000
ATTAINED = 0.99
LEAST_PEAK = 0.9
"""A peak below this share of the eager policy's is a failure; the goal is 97 %."""
LOW_LOAD = 0.3
STEP = 1.5
PRECISION = 1.025
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
TABLES: dict[str, Callable[[int], float]] = {
    "stairs": lambda rows: 2 + 0.9 * -(-rows // 4),
    "root": lambda rows: 1 + 3.1 * float(rows) ** 0.5,
    "convex": lambda rows: 5 + 0.1 * rows + 0.004 * rows**2,
    "constant": lambda rows: 8 + 0.01 * rows,
    "linear": lambda rows: 1.6 + 0.55 * rows,
}
"""Milliseconds of a batch. Neither these tables nor the seeds were used in the design of the policy."""


def best_row_ms(key: str) -> float:
    """Milliseconds a row in the batch size with the best rate; `key` is `table/model`."""
    shape = TABLES[key.partition("/")[0]]
    return min(shape(rows) / rows for rows in SIZES)


class Setup(NamedTuple):
    """Pipelines of given stages on a number of partitions; `escalation` is the share of rows past the first stage."""

    pipelines: tuple[tuple[str, ...], ...]
    partitions: int
    slo_ms: float
    escalation: float = 1.0

    def capacity(self) -> float:
        """Requests a second that the partitions complete in full batches."""
        row_ms = [
            sum(best_row_ms(key) * self.escalation**stage for stage, key in enumerate(stages))
            for stages in self.pipelines
        ]
        return self.partitions / (sum(row_ms) / len(row_ms)) * 1000

    def spec(self, objective: Objective) -> SchedulerSpec:
        keys = sorted({key for stages in self.pipelines for key in stages})
        verdict = ConfidenceSpec("probs", Confidence.MAX)
        return SchedulerSpec(
            tuple(ScheduledModel(key, 64, DeadlineSettings(objective), (verdict,)) for key in keys),
            tuple(
                PipelineConfig(
                    f"p{number}",
                    tuple(
                        StageConfig(f"{key}{stage}", key, when=WhenConfig(stage - 1, 0, 0.5) if stage else None)
                        for stage, key in enumerate(stages)
                    ),
                )
                for number, stages in enumerate(self.pipelines)
            ),
            tuple(PartitionConfig(f"gpu{number}", "gpu") for number in range(self.partitions)),
        )


SETUPS = {
    "stairs, 1 model on 1": Setup((("stairs",),), 1, 70),
    "root, 1 model on 3": Setup((("root",),), 3, 90),
    "linear, 4 models on 2": Setup(tuple((f"linear/{n}",) for n in range(4)), 2, 60),
    "constant, 8 models on 4": Setup(tuple((f"constant/{n}",) for n in range(8)), 4, 50),
    "constant, 6 models on 3, tight": Setup(tuple((f"constant/{n}",) for n in range(6)), 3, 28),
    "chain of convex, root on 2": Setup((("convex", "root"),), 2, 120),
    "cascade and chain on 3": Setup((("stairs", "convex"), ("root", "convex")), 3, 110, escalation=0.3),
}


class Run:
    """A simulated run, and the simulated machine at the same time."""

    def __init__(self, setup: Setup, objective: Objective, seed: int) -> None:
        self._tables: dict[str, LatencyTable] = {}
        self._escalation = setup.escalation
        self._chance = np.random.default_rng(seed)
        self.busy_ns = 0
        self.good = 0
        spec = setup.spec(objective)
        for model in spec.models:
            shape = TABLES[model.key.partition("/")[0]]
            self._tables[model.key] = LatencyTable.from_ms({rows: shape(rows) for rows in SIZES})
        self._simulator = Simulator(Scheduler(spec), self, self._observe)
        for partition in spec.partitions:
            self._simulator.at(0, PartitionReady(partition.name, self._tables))

    def play(self, times: Times, pipelines: list[int], slo_ms: float) -> "Run":
        self._simulator.run(self._arrivals(times, pipelines, round(slo_ms * NS_PER_MS)))
        return self

    def batch_ns(self, batch: DispatchBatch) -> int:
        took_ns = self._tables[batch.model].latency_ns(batch.rows)
        self.busy_ns += took_ns
        return took_ns

    def batch_confidences(self, batch: DispatchBatch) -> tuple[tuple[float, ...], ...]:
        return (tuple((self._chance.random(batch.rows) > self._escalation).astype(float).tolist()),)

    def combined_confidences(self, combination: CombineOutputs) -> tuple[tuple[float, ...], ...]:
        return ()

    @staticmethod
    def _arrivals(times: Times, pipelines: list[int], slo_ns: int) -> Iterator[tuple[int, RequestArrived]]:
        for request, (at_ns, pipeline) in enumerate(zip(times.tolist(), pipelines, strict=True)):
            yield at_ns, RequestArrived(request, f"p{pipeline}", 1, at_ns + slo_ns)

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, CompleteRequest) and decision.outcome is Outcome.COMPLETED:
                self.good += 1


PROCESSES = {
    "poisson": Arrivals(ArrivalProcess.POISSON),
    "gamma, CV 4": Arrivals(ArrivalProcess.GAMMA, 4.0),
    "trace": Arrivals(ArrivalProcess.TRACE),
}


def write_trace(path: Path, rng: np.random.Generator) -> None:
    """A log of four days with a daily cycle, and six bursts a day of 2.5 times the rate for a thirtieth of a day.

    In the form in which cloud providers publish theirs: a line a request, with its time.
    """
    days = np.linspace(0, 4, 8001)
    intensity = 1 + 0.6 * np.sin(2 * np.pi * days)
    for burst in range(24):
        start = (burst + 0.7 * rng.random()) / 6
        intensity[(days >= start) & (days < start + 1 / 30)] *= 2.5
    expected = np.concatenate(([0.0], np.cumsum((intensity[1:] + intensity[:-1]) / 2)))
    drawn = np.sort(rng.random(REQUESTS)) * expected[-1]
    times = (BEGIN + timedelta(days=day) for day in np.interp(drawn, expected, days).tolist())
    path.write_text("".join(["TIMESTAMP,ROWS\n", *(f"{time:%Y-%m-%d %H:%M:%S.%f},1\n" for time in times)]))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A trace for each seed."""
    directory = tmp_path_factory.mktemp("traces")
    paths = {seed: directory / f"{seed}.csv" for seed in SEEDS}
    for seed, path in paths.items():
        write_trace(path, np.random.default_rng(seed))
    return paths


class Outcomes(NamedTuple):
    """The share of the requests within the objective, and the partitions' utilisation."""

    good: float
    busy: float


class Traffic(NamedTuple):
    """An arrival process, with a trace for each seed when it replays one."""

    arrivals: Arrivals
    traces: dict[int, Path]

    def times(self, rate: float, seed: int, rng: np.random.Generator) -> Times:
        arrivals = msgspec.structs.replace(self.arrivals, trace=str(self.traces[seed]))
        return arrivals.draw(rate, None, REQUESTS, rng)


def play(setup: Setup, traffic: Traffic, objective: Objective, rate: float) -> Outcomes:
    """The mean outcomes over the seeds; both objectives get the same arrivals."""
    good = busy = 0.0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        pipelines = rng.integers(len(setup.pipelines), size=REQUESTS).tolist()
        run = Run(setup, objective, seed).play(traffic.times(rate, seed, rng), pipelines, setup.slo_ms)
        good += run.good / REQUESTS
        busy += run.busy_ns * rate / (REQUESTS * NS_PER_S * setup.partitions)
    return Outcomes(good / len(SEEDS), busy / len(SEEDS))


def peak_rate(good_at: Callable[[float], float], above: float) -> float:
    """The highest rate at which enough requests are good: steps down from `above`, then bisection."""
    high = above
    while good_at(low := high / STEP) < ATTAINED:
        high = low
    while high > PRECISION * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if good_at(middle) >= ATTAINED else (low, middle)
    return low


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("name", SETUPS)
def test_deferral(name: str, process: str, report: Report, traces: dict[int, Path]) -> None:
    """Peak goodput, and utilisation at 30 % of the eager policy's peak; virtual time makes both reproducible."""
    setup, traffic = SETUPS[name], Traffic(PROCESSES[process], traces)

    def peak(objective: Objective) -> float:
        return peak_rate(lambda rate: play(setup, traffic, objective, rate).good, setup.capacity() * STEP)

    eager_peak, deferred_peak = peak(Objective.LATENCY), peak(Objective.COST)
    eager, deferred = (play(setup, traffic, each, LOW_LOAD * eager_peak) for each in Objective)
    what = f"cost against latency, {name}, {process}"
    report(f"{what}: peak", f"{deferred_peak / eager_peak:.0%} of {eager_peak:,.0f}/s", ">= 97%")
    report(f"{what}: busy at 30 %", f"{deferred.busy:.0%}", f"< {eager.busy:.0%}")
    report(f"{what}: in time at 30 %", f"{deferred.good:.1%}", f">= {ATTAINED:.0%}")
    assert deferred_peak >= LEAST_PEAK * eager_peak
    assert deferred.busy < eager.busy
    assert deferred.good >= ATTAINED
