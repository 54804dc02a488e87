"""Batches that pause: the processes of a server wait for a core that others use as well.

A pause has nothing to do with the size of a batch, and takes many times as long as a small one.
"""

import random
from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from sluice.batcher.drivers.simulated_machine import Host
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import Limits, WhenConfig
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, Settlement
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import CERTAINTY, MS, US, S, chain, model, single, spec_of

FULL = 64
TIMES_MS = {
    "prepare:1": {1: 0.03, 2: 0.03, 4: 0.03, 8: 0.03, 16: 0.04, 32: 0.04, FULL: 0.05},
    "cheap:1": {1: 0.08, 2: 0.08, 4: 0.08, 8: 0.09, 16: 0.09, 32: 0.1, FULL: 0.12},
    "dear:1": {1: 0.76, 2: 0.85, 4: 1.05, 8: 1.4, 16: 2.2, 32: 3.9, FULL: 7.2},
}
ESCALATED, PAUSED, PAUSE_MS = 1 / 3, 0.3, (1.0, 6.0)
MEAN_PAUSE_MS = PAUSED * sum(PAUSE_MS) / 2
HAND_OFF_NS = 500 * US
OBJECTIVE_NS, WARM_NS, UNTIL_NS = 50 * MS, S, 3 * S


def took_ms(key: str, rows: float) -> float:
    """The time of a batch without pauses, interpolated between the sizes that were measured."""
    times = TIMES_MS[key]
    low, high = next(pair for pair in pairwise(times) if rows <= pair[1])
    return times[low] + (times[high] - times[low]) * (rows - low) / (high - low)


class PausingMachine:
    """Three of ten batches pause for 1 to 6 ms."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def batch_ns(self, batch: DispatchBatch) -> int:
        pause_ms = self._random.uniform(*PAUSE_MS) if self._random.random() < PAUSED else 0.0
        return round((took_ms(batch.model, batch.rows) + pause_ms) * MS)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self._random.random() for _ in range(batch.rows)),) if batch.model == "cheap:1" else ()

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


def answered(keys: list[str], rate: float) -> tuple[float, float]:
    """Requests a second in time, and the share of late ones among the answered, of a model or a cascade."""
    pipeline = single(keys[0])
    if len(keys) > 1:
        built = chain(*keys)
        first, second, third = built.stages
        stages = first, second, msgspec.structs.replace(third, sources=(0,), when=WhenConfig(1, 0, ESCALATED))
        pipeline = msgspec.structs.replace(built, stages=stages)
    pipeline = msgspec.structs.replace(pipeline, slo_ns=OBJECTIVE_NS)
    models = [model(key, FULL, confidences=(CERTAINTY,) if key == "cheap:1" else ()) for key in keys]
    scheduler = Scheduler(spec_of(models, [pipeline], limits=Limits(hand_off_ns=100 * US)))
    came: list[int] = []
    outcomes: Counter[Outcome] = Counter()

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, RequestArrived):
            came.append(now_ns)
        for decision in decisions:
            if isinstance(decision, Settlement) and came[decision.request] >= WARM_NS:
                outcomes[decision.outcome] += 1

    host = Host(hand_off_ns=HAND_OFF_NS, between_ns=20 * US, return_ns=HAND_OFF_NS)
    simulator = Simulator(scheduler, PausingMachine(), observe, host)
    simulator.at(0, PartitionReady("cpu0", {key: LatencyTable.from_ms(TIMES_MS[key]) for key in keys}))
    source, now_ns, arrivals = random.Random(2), 0.0, []
    while (now_ns := now_ns + source.expovariate(rate) * S) < UNTIL_NS:
        arrivals.append(int(now_ns))
    simulator.run(
        (at_ns, RequestArrived(number, pipeline.name, 1, at_ns + OBJECTIVE_NS)) for number, at_ns in enumerate(arrivals)
    )
    in_time, late = outcomes[Outcome.COMPLETED], outcomes[Outcome.COMPLETED_LATE]
    return in_time / (UNTIL_NS - WARM_NS) * S, late / (in_time + late)


@pytest.mark.parametrize(("factor", "kept"), [(0.9, 0.85), (2.0, 0.9)])
def test_a_model_keeps_most_of_the_rate_of_full_batches(factor: float, kept: float) -> None:
    most = FULL / (took_ms("dear:1", FULL) + MEAN_PAUSE_MS) * 1000
    rate, late = answered(["dear:1"], factor * most)
    assert rate >= kept * most
    assert late <= 0.01


def test_a_cascade_keeps_more_than_three_fifths_of_the_rate_of_full_batches() -> None:
    """Three batches one after the other wait for three hand-offs, and each may pause, so it cannot be all."""
    escalated_ms = took_ms("dear:1", ESCALATED * FULL)
    most = FULL / (took_ms("prepare:1", FULL) + took_ms("cheap:1", FULL) + escalated_ms + 3 * MEAN_PAUSE_MS) * 1000
    rate, late = answered(["prepare:1", "cheap:1", "dear:1"], 1.2 * most)
    assert rate >= 0.62 * most
    assert late <= 0.015
