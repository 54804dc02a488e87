"""The answer of `sluice plan`, as `--json` prints it: times in milliseconds, costs in units of currency.

A cost "per 1000" is that of 1000 requests of one row, or of 1000 rows of one stage.
"""

import enum

import msgspec

PER = 1000
"""Requests, or rows, that costs are given for."""


def percent(share: float) -> str:
    """A share as text with three digits, such as "12.5%"."""
    return f"{share * 100:.3g}%"


class TableSource(enum.StrEnum):
    """The source of the latencies of a model on a kind of partition."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    TIMED_NOW = "timed now"


class TableUsed(msgspec.Struct, frozen=True):
    """The latencies that the plan rests on; `notes` say what is missing, stale or unusual."""

    model: str
    kind: str
    source: TableSource
    notes: tuple[str, ...] = ()


class Arithmetic(msgspec.Struct, frozen=True):
    """The terms of a stage's figures.

    `kind_rate` rows per second arrive at `servers` partitions, without the time that other stages take of them. A batch
    of `rows` (of the stage) computes for `compute_ms`, a full one for `full_ms`, one of `rows99` for `compute99_ms`;
    `hand_off_ms` is added to each. The p99 is the last of these plus the longest of the three waits and `beside99_ms`,
    the wait for parallel stages. `left_ms` of the objective remain when the stage has ended; the later stages cost
    `rest_cost` per row within that time (None: there is no time for them).
    """

    kind_rate: float
    servers: float
    full_ms: float
    compute_ms: float
    hand_off_ms: float
    rows99: int
    compute99_ms: float
    fill99_ms: float
    queue99_ms: float
    running99_ms: float
    beside99_ms: float
    price_per_s: float
    begin_ms: float
    left_ms: float
    rest_cost: float | None


class StageAnswer(msgspec.Struct, frozen=True):
    """One stage: `model` in batches of up to `batch`, typically of `rows`, on partitions of `kind`.

    `probability` is the share of rows that reach it, `rate` these rows per second. `counted` says whether its time
    counts at the percentile, `critical` whether it is on the critical path. p50, p99 and `utilisation` are None if its
    rate exceeds the partitions' capacity. A combiner has model and kind "" and no arithmetic.
    """

    stage: str
    model: str
    kind: str
    simulated: bool
    batch: int
    rows: int
    probability: float
    rate: float
    counted: bool
    critical: bool
    p50_ms: float | None
    p99_ms: float | None
    cost_per_1000_rows: float
    utilisation: float | None
    arithmetic: Arithmetic | None


class PlannedConfiguration(msgspec.Struct, frozen=True):
    """One choice for every stage; p50 and p99 are None if a stage has none."""

    stages: tuple[StageAnswer, ...]
    p50_ms: float | None
    p99_ms: float | None
    cost_per_1000: float


class FrontPoint(msgspec.Struct, frozen=True):
    """A point of the Pareto front: with an objective of at least `p99_ms` the pipeline costs `cost_per_1000`."""

    p99_ms: float
    cost_per_1000: float


class RunnerUp(msgspec.Struct, frozen=True):
    """The second best configuration; `stages` are those that differ from the plan, as `STAGE=MODEL*BATCH@KIND`."""

    stages: tuple[str, ...]
    p99_ms: float
    cost_per_1000: float
    reason: str


class Bottleneck(msgspec.Struct, frozen=True):
    """The stage that takes most of the partitions' time.

    `capacity` is the rate in rows per second at which all partitions could run its model alone. `utilisation` is the
    share of their time that its rows take at the best batch size, `total_utilisation` that of all stages, on the
    busiest partitions. Only partitions that hold the models count.
    """

    stage: str
    model: str
    capacity: float
    utilisation: float
    total_utilisation: float


class Infeasible(msgspec.Struct, frozen=True):
    """The reason why no configuration fits; `stage` contributes most to it.

    `excess_ms` is the time of the fastest configuration beyond the objective (None: the rate is the problem),
    `excess_rate` the rate beyond the partitions' capacity. `nearest_slo_ms` is the lowest objective at this rate,
    `nearest_rate` the highest rate at this objective; None if there is none.
    """

    stage: str
    reason: str
    excess_ms: float | None
    excess_rate: float | None
    nearest_slo_ms: float | None
    nearest_rate: float | None


class LimitingFactor(enum.StrEnum):
    """The limit of the rate."""

    CAPACITY = "capacity"
    LATENCY = "latency"


class PlanAnswer(msgspec.Struct, frozen=True):
    """The complete answer. `rate` is in requests per second; `partitions` counts them by kind.

    `residency` are the models that each partition holds, by its name; empty if every partition has room for all. `plan`
    is the fastest configuration, which misses the objective, if none fits. `front` is empty if the rate exceeds the
    partitions' capacity. `exact_cost_per_1000` is the lowest cost (None: no configuration fits).
    """

    pipeline: str
    slo_ms: float
    rate: float
    percentile: float
    planner: str
    partitions: dict[str, int]
    residency: dict[str, tuple[str, ...]]
    simulated: bool
    assumptions: tuple[str, ...]
    tables: tuple[TableUsed, ...]
    feasible: bool
    plan: PlannedConfiguration
    front: tuple[FrontPoint, ...]
    runner_up: RunnerUp | None
    bottleneck: Bottleneck
    highest_rate: float | None
    limited_by: LimitingFactor | None
    lowest_slo_ms: float | None
    exact_cost_per_1000: float | None
    infeasible: Infeasible | None
