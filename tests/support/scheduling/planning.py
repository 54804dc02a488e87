"""Planning problems for tests and benchmarks: stages with realistic or random figures, in pipelines of any shape."""

from collections.abc import Sequence

import numpy as np

from sluice.batcher.planner.problem.problem import Option, Problem, StageProblem

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CORES = (1, 2, 4, 8)
SLICES = (1, 2, 3, 4, 5, 6, 7, 8)
"""An option of a realistic stage is a batch size on a kind of partition: a number of cores and eighths of a device."""
CORE_PRICE, SLICE_PRICE = 0.034 / 3600, 0.67 / 3600
"""Prices a second."""

Sources = Sequence[Sequence[int]]


def realistic_stage(random: np.random.Generator, name: str, sources: Sequence[int] = ()) -> StageProblem:
    """256 options: time grows with a power of the batch, falls with powers of the share and the cores, 3 % noise."""
    base_ms, fixed = random.uniform(2, 20), random.uniform(0.1, 0.6)
    grows, shares, cores_help = random.uniform(0.6, 1), random.uniform(0.4, 0.95), random.uniform(0.05, 0.4)
    latencies, costs, options = [], [], []
    for batch in BATCHES:
        for cores in CORES:
            for slices in SLICES:
                ms = base_ms * (fixed + (1 - fixed) * batch**grows) * (8 / slices) ** shares * cores**-cores_help
                ns = round(ms * random.lognormal(0, 0.03) * 1e6)
                latencies.append(ns)
                costs.append(ns / 1e9 * (cores * CORE_PRICE + slices * SLICE_PRICE) / batch)
                options.append(Option(name, batch, f"{cores}c.{slices}g", 1, slices / len(SLICES), ns))
    figures = np.array(latencies), np.array(costs)
    return StageProblem(name, *figures, tuple(options), tuple(sources), rate=random.uniform(10, 100))


def random_stage(
    random: np.random.Generator, name: str, options: int, sources: Sequence[int] = (), *, cascading: bool = False
) -> StageProblem:
    """A stage with small integer figures: sums are exact, ties are common. `cascading` adds probabilities below 1."""
    return StageProblem(
        name,
        random.integers(1, 40, options),
        random.integers(0, 64, options).astype(np.float64),
        sources=tuple(sources),
        probability=float(random.choice((0.0, 0.125, 0.5, 1.0))) if cascading else 1.0,
        on_path=bool(random.random() < 0.8) if cascading else True,
    )


def realistic_problem(seed: int, sources: Sources, slack: float = 0.3) -> Problem:
    """Realistic stages in the shape of `sources`, one entry a stage; `slack` as in `with_budget`."""
    random = np.random.default_rng(seed)
    return with_budget([realistic_stage(random, f"s{index}", before) for index, before in enumerate(sources)], slack)


def random_problem(
    seed: int, sources: Sources, options: int, slack: float | None = None, *, cascading: bool = False
) -> Problem:
    """Stages of 1 to `options` options in the shape of `sources`; without `slack` the budget may be infeasible."""
    random = np.random.default_rng(seed)
    stages = [
        random_stage(random, f"s{index}", int(random.integers(1, options + 1)), before, cascading=cascading)
        for index, before in enumerate(sources)
    ]
    return with_budget(stages, float(random.uniform(-0.1, 1.1)) if slack is None else slack)


def chain(stages: int) -> tuple[tuple[int, ...], ...]:
    """The sources of a chain of stages."""
    return tuple((index - 1,) if index else () for index in range(stages))


def series_parallel(random: np.random.Generator, stages: int) -> tuple[tuple[int, ...], ...]:
    """A random series-parallel shape with some transitive edges."""
    sources: list[set[int]] = [set() for _ in range(stages)]

    def build(first: int, last: int) -> tuple[set[int], set[int]]:
        """Join stages first..last (inclusive); returns the first and the last stages of the part."""
        if first == last:
            return {first}, {first}
        middle = int(random.integers(first, last))
        (begin, end), (next_begin, next_end) = build(first, middle), build(middle + 1, last)
        if random.random() < 0.5:
            return begin | next_begin, end | next_end
        for stage in next_begin:
            sources[stage] |= end
        for stage in range(middle + 1, last + 1):
            sources[stage] |= {int(before) for before in range(first, middle + 1) if random.random() < 0.1}
        return begin, next_end

    build(0, stages - 1)
    return tuple(tuple(sorted(before)) for before in sources)


def directed_acyclic(random: np.random.Generator, stages: int, density: float = 0.35) -> tuple[tuple[int, ...], ...]:
    """A random directed acyclic shape: each edge from an earlier stage exists with probability `density`."""
    return tuple(tuple(before for before in range(stage) if random.random() < density) for stage in range(stages))


def longest_ns(stages: Sequence[StageProblem], choices: Sequence[int]) -> int:
    """The latency of the critical path with one option chosen for each stage; 0 without stages."""
    ends: list[int] = []
    for stage, choice in zip(stages, choices, strict=True):
        begin = max((ends[source] for source in stage.sources), default=0)
        ends.append(begin + (int(stage.latency_ns[choice]) if stage.on_path else 0))
    return max(ends, default=0)


def with_budget(stages: Sequence[StageProblem], slack: float) -> Problem:
    """A problem whose budget fits only the quickest options at `slack` 0, the cheapest at 1, and none below 0."""
    quickest = longest_ns(stages, [int(stage.latency_ns.argmin()) for stage in stages])
    cheapest = longest_ns(stages, [int(stage.cost.argmin()) for stage in stages])
    return Problem(tuple(stages), int(quickest + slack * (cheapest - quickest)) - (slack < 0))
