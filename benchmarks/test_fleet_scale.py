"""Fleets of 10 to 1 000 partitions in virtual time: how long decisions take, and the goodput of a partition."""

from typing import Any

from benchmarks.conftest import Report
from benchmarks.support.fleet import Fleet, by_type, least, replay, simulate

LOAD = 0.8
SIZES = {10: 4, 100: 10, 1000: 100}
"""Pipelines by partitions."""
SECONDS = {10: 20.0, 100: 4.0, 1000: 0.4}
"""Virtual time that counts, by partitions."""
ROUNDS = 2


def test_decisions_and_goodput_from_10_to_1000_partitions(benchmark: Any, report: Report) -> None:
    """The time of an event in the scheduler, and what a whole device answers in time in a second."""
    fleets = {partitions: Fleet(partitions, pipelines, "pools", LOAD) for partitions, pipelines in SIZES.items()}
    runs = {partitions: simulate(fleet, SECONDS[partitions]) for partitions, fleet in fleets.items()}
    took: dict[int, list[list[int]]] = {partitions: [] for partitions in fleets}
    for _ in range(ROUNDS):
        for partitions, fleet in fleets.items():
            took[partitions].append(replay(fleet, runs[partitions].steps))
    benchmark.pedantic(replay, args=(fleets[1000], runs[1000].steps), rounds=1)
    goodput = {partitions: run.in_time * fleets[partitions].offered for partitions, run in runs.items()}
    for partitions, run in runs.items():
        times = by_type(run.steps, least(took[partitions]))
        figure = f"an event with {partitions} partitions, {SIZES[partitions]} pipelines"
        report(f"{figure}, us", f"{times['all'].mean:.1f}", "<= 150")
        report(f"{figure}, us (99th percentile)", f"{times['all'].p99:.1f}", "")
        report(f"one of these {partitions} comes up, us", f"{times['PartitionReady'].mean:.1f}", "")
    for partitions in (100, 1000):
        share = goodput[partitions] / goodput[10]
        report(f"goodput of a device among {partitions} partitions, against 10", f"{share:.3f}", ">= 0.97")
