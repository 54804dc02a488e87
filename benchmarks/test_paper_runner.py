"""The runner of the experiments of papers: scheduler events a second of processor time, in virtual time.

An event is an input of the scheduler (what has happened, or a wake-up) or a decision of it. The time is that of the
whole run: the scheduler, the simulator with the planner, the arrivals and the records, without the set-up.
"""

import random
import time
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from benchmarks.conftest import Report
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.gateway.version import is_compiled
from sluice.loadgen.papers import many_models
from sluice.loadgen.papers.engines.virtual_gateway import PlayedTraffic, VirtualGateway
from sluice.models.profiles.latency_table import LatencyTable

TABLE = LatencyTable.from_ms({1: 0.67, 2: 0.8, 4: 1.03, 8: 1.66, 16: 2.46, 32: 3.81, 64: 6.01})
SLO_NS = 100_000_000
ROUNDS = 3

Observe = Callable[[int, AnyEvent | None, list[AnyDecision]], None]
Arrivals = Iterator[tuple[int, RequestArrived]]
Run = tuple[VirtualGateway, Arrivals]


class Counts:
    """Counts events as they are observed."""

    def __init__(self) -> None:
        self.events = 0
        self.wakeups = 0

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Count an input and its decisions."""
        self.events += 1 + len(decisions)
        self.wakeups += event is None


def poisson(requests: int, rate: float) -> Arrivals:
    """Requests of one row at a rate a second."""
    gaps = random.Random(1)
    now_ns = 1_000
    for request in range(requests):
        now_ns += int(gaps.expovariate(rate) * 1e9)
        yield now_ns, RequestArrived(request, "p", 1, now_ns + SLO_NS)


def chain(stages: int, partitions: int, requests: int, rate: float, observe: Observe | None) -> Run:
    """A pipeline of stages with a model each, which all partitions hold."""
    names = [f"m{number}" for number in range(stages)]
    spec = SchedulerSpec(
        tuple(ScheduledModel(name, 64, DeadlineSettings()) for name in names),
        (
            PipelineConfig(
                "p", tuple(StageConfig(name, name, (index - 1,) if index else ()) for index, name in enumerate(names))
            ),
        ),
        tuple(PartitionConfig(f"p{number}", "cpu1") for number in range(partitions)),
    )
    tables = {each.name: dict.fromkeys(names, TABLE) for each in spec.partitions}
    return VirtualGateway(spec, tables, observe=observe), poisson(requests, rate)


def one_model(observe: Observe | None) -> Run:
    """One model on one partition."""
    return chain(1, 1, 40_000, 8_000.0, observe)


def three_stages(observe: Observe | None) -> Run:
    """Three stages on eight partitions."""
    return chain(3, 8, 10_000, 8_000.0, observe)


def thousands_of_models(observe: Observe | None) -> Run:
    """4000 models on 8 GPUs that hold a part of them, at their capacity: the experiment `clockwork`."""
    arrivals = list(islice(many_models.arrivals(1, 1.0), 10_000))  # a whole minute is drawn at once
    return many_models.gateway(observe), iter(arrivals)


@pytest.mark.parametrize("make", [one_model, three_stages, thousands_of_models])
def test_events_of_the_runner(make: Callable[[Observe | None], Run], report: Report) -> None:
    """The best of some rounds, since other programs can only slow a round down."""
    counts = Counts()
    gateway, arrivals = make(counts.observe)
    expected = gateway.play(arrivals)
    best_s = float("inf")
    for _ in range(ROUNDS):
        gateway, arrivals = make(None)
        began_s = time.process_time()
        played: PlayedTraffic = gateway.play(arrivals)
        best_s = min(best_s, time.process_time() - began_s)
        assert played == expected
    build = "compiled" if is_compiled() else "pure"
    what = f"runner, {build}, {make.__name__.replace('_', ' ')}: events/s"
    report(what, f"{counts.events / best_s:,.0f} (of which wake-ups {counts.wakeups / counts.events:.0%})", "")
