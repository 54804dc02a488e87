"""The document of what a server does now: time of the event loop for a tick and for a call, and its size."""

import gc
from collections.abc import Callable, Generator
from functools import partial
from time import thread_time_ns

import pytest

from benchmarks.conftest import Report
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.overview.document import MAX_BYTES, Question
from sluice.gateway.overview.live import SLICE_NS
from sluice.gateway.overview.pieces import Slices, at_once
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from sluice.models.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tests.support.gateway.overview import PlayedServer

MODELS, PIPELINES, STAGES, PARTITIONS = 1000, 50, 4, 8
BATCHES = 1000
ROUNDS = 15
GOAL_US = 200


def pipeline(name: str, models: list[str], slo_ms: float | None) -> Pipeline:
    """A chain of models."""
    sources = ["request", *(f"stage{index}" for index in range(len(models) - 1))]
    stages = tuple(
        Stage(f"stage{index}", {"x": TensorSource(source, "x")}, model=key)
        for index, (key, source) in enumerate(zip(models, sources, strict=True))
    )
    return Pipeline(name, 1, (), (), stages, {"y": (TensorSource(stages[-1].name, "y"),)}, 8, slo_ms)


class Busy:
    """A server of many models with 300 s of history; `active` pipelines get requests."""

    def __init__(self, active: int) -> None:
        keys = [f"model-of-a-team-{number}:1" for number in range(MODELS)]
        pipelines = [
            pipeline(f"pipeline-of-a-team-{number}", keys[STAGES * number : STAGES * (number + 1)], 50.0)
            for number in range(PIPELINES)
        ]
        self.served = [*pipelines, *(pipeline(key.partition(":")[0], [key], None) for key in keys)]
        self.active = self.served[:active]
        self.keys = keys
        self.server = PlayedServer(*self.served, partitions=[f"cpu{number}" for number in range(PARTITIONS)])
        for _ in range(300):
            self.second()
            self.server.tick()

    def second(self) -> None:
        """Let requests and batches of a second end."""
        for each in self.active:
            self.server.end(each.key, Outcome.COMPLETED, 3, ms=20.0)
            self.server.end(each.key, Outcome.COMPLETED_LATE, 1, ms=60.0)
        began_ms = self.server.now_ns / NS_PER_MS
        for number in range(BATCHES):
            at_ms = began_ms + number * 1000 / BATCHES
            key, partition = self.keys[number % 200], f"cpu{number % PARTITIONS}"
            self.server.run(key, 4, at_ms=at_ms, ms=0.5, partition=partition, number=number)

    def tick(self) -> Slices:
        """A tick after another second."""
        self.second()
        self.server.now_ns += NS_PER_S
        return self.server.overview.tick(self.server.now_ns, self.server.day_ns + self.server.now_ns)


def longest_slice_ns(work: Generator[None, None, object]) -> int:
    """The longest slice of some work, as `LiveOverview` cuts it."""
    longest_ns, began_ns = 0, thread_time_ns()
    for _ in work:
        if (length_ns := thread_time_ns() - began_ns) > SLICE_NS:
            longest_ns = max(longest_ns, length_ns)
            began_ns = thread_time_ns()
    return max(longest_ns, thread_time_ns() - began_ns)


def call_ns(call: Callable[[], object]) -> int:
    """The processor time of a call."""
    began_ns = thread_time_ns()
    call()
    return thread_time_ns() - began_ns


@pytest.mark.parametrize(("active", "label"), [(PIPELINES, "50 pipelines busy"), (PIPELINES + MODELS, "all 1050 busy")])
def test_overview(report: Report, active: int, label: str) -> None:
    """Medians over ticks, with 1000 models and 50 pipelines of 4 stages on 8 partitions, and 1000 batches a second."""
    busy = Busy(active)
    overview = busy.server.overview
    first = Question(busy.active[0].key)
    following = busy.server.reply(first).following
    ticks, longest, firsts, nexts, shared = [], [], [], [], []
    gc.disable()
    try:
        for _ in range(ROUNDS):
            longest.append(longest_slice_ns(busy.tick()))
            following = busy.server.reply(following).following
            ticks.append(call_ns(partial(at_once, busy.tick())))
            firsts.append(longest_slice_ns(overview.reply(first)))
            nexts.append(call_ns(partial(busy.server.reply, following)))
            shared.append(call_ns(partial(busy.server.reply, following)))
            sizes = len(busy.server.reply(first).body), len(busy.server.reply(following).body)
            following = busy.server.reply(following).following
    finally:
        gc.enable()
    for name, times, goal in (
        ("longest slice of a tick", longest, f"<= {GOAL_US} us"),
        ("longest slice of the first document", firsts, f"<= {GOAL_US} us"),
        ("the next ones", nexts, f"<= {GOAL_US} us"),
        ("one for another viewer", shared, ""),
    ):
        report(f"overview, {label}: {name}", f"{median(times) / NS_PER_US:.0f} us", goal)
    report(f"overview, {label}: a tick", f"{median(ticks) / NS_PER_MS:.1f} ms", "one a second: < 1 % of a core")
    report(f"overview, {label}: bytes, first and next", f"{sizes[0]}, {sizes[1]}", f"<= {MAX_BYTES}")
    assert max(sizes) <= MAX_BYTES


def median(values: list[int]) -> int:
    """The median of an odd number of values."""
    return sorted(values)[len(values) // 2]
