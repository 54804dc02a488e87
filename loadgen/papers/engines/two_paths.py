"""A pipeline of two paths on two kinds of partitions, and how wrong its profiles are: what `llama` plays."""

import random
from collections import Counter
from collections.abc import Mapping

import msgspec

from sluice.loadgen.papers.engines.early_commitment import PathStage
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

RATE = 40.0
"""Requests a second."""
TARGET_MS = 300.0
WRONG = 1.3
"""The time of a batch that takes longer than profiled, as a multiple of that; `2 - WRONG` where it takes less."""
FAILURES = 0.03
SIZES = (1, 2, 4, 8)
CPU, GPU = "cpu", "gpu"
PRICES = {CPU: 1.0, GPU: 5.0}
COUNTS = {CPU: 8, GPU: 2}
ROW_MS = {
    "decode": {CPU: 15.0, GPU: 10.0},
    "motion": {CPU: 25.0, GPU: 6.0},
    "detect": {CPU: 100.0, GPU: 12.0},
    "recognise": {CPU: 60.0, GPU: 8.0},
    "merge": {CPU: 4.0, GPU: 3.0},
}
"""The profiled time of a row, by model and kind."""
FIXED = {CPU: 0.1, GPU: 0.6}
"""The part of that which a batch takes once, however large it is."""
STEPS = (
    PathStage("decode"),
    PathStage("motion", (0,)),
    PathStage("detect", (0,)),
    PathStage("recognise", (2,)),
    PathStage("merge", (1, 3)),
)
EXACT, SHORT, MIXED = CASES = (
    "profiles exact",
    "batches take 30 % longer than profiled",
    "each model and kind 30 % longer or shorter",
)
Errors = Mapping[tuple[str, str], float]
"""By kind and model, the time of batches as a multiple of the profiled one."""


def tables(kind: str) -> dict[str, LatencyTable]:
    """The profiles of the models on a kind of partition."""
    return {
        model: LatencyTable.from_ms({size: row[kind] * (FIXED[kind] + (1 - FIXED[kind]) * size) for size in SIZES})
        for model, row in ROW_MS.items()
    }


def errors(case: str, seed: int) -> Errors:
    """The errors of the profiles in a case."""
    chance = random.Random(seed)
    factors = {EXACT: (1.0,), SHORT: (WRONG,), MIXED: (WRONG, 2 - WRONG)}[case]
    return {(kind, model): chance.choice(factors) for kind in PRICES for model in ROW_MS}


def arrivals_ns(seed: int, seconds: int) -> list[int]:
    """The times of requests: a Poisson process."""
    chance = random.Random(f"arrivals {seed}")
    times, now_s = [], 0.0
    while (now_s := now_s + chance.expovariate(RATE)) < seconds:
        times.append(int(now_s * NS_PER_S))
    return times


def _whole_cost(rows: Mapping[tuple[str, str], float], wrong: Errors, *, cheapest: bool) -> float:
    """The cost of rows by kind and model in full batches, on their kinds or, if `cheapest`, on the cheapest one."""
    most = SIZES[-1]

    def row_cost(kind: str, model: str) -> float:
        return PRICES[kind] * tables(kind)[model].latency_ns(most) * wrong[kind, model] / most / NS_PER_S

    return sum(
        count * (min(row_cost(each, model) for each in PRICES) if cheapest else row_cost(kind, model))
        for (kind, model), count in rows.items()
    )


class Played(msgspec.Struct, frozen=True):
    """The part of all requests that were answered in time, and what a thousand requests cost.

    They would have cost `full` if all batches had been full, and `cheapest` if these had also run on the cheapest
    kinds. Batches have `rows` rows on average.
    """

    in_time: float
    cost: float
    full: float
    cheapest: float
    rows: float


def played(in_time: float, cost: float, batches: Counter[tuple[str, str, int]], wrong: Errors, requests: int) -> Played:
    """The figures of a run with these batches, by kind, model and rows."""
    rows = Counter[tuple[str, str]]()
    for (kind, model, size), count in batches.items():
        rows[kind, model] += size * count
    full, cheapest = (1000 * _whole_cost(rows, wrong, cheapest=each) / requests for each in (False, True))
    return Played(in_time, 1000 * cost / requests, full, cheapest, rows.total() / batches.total())
