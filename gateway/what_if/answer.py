"""What `sluice plan` finds out, as `--json` prints it: times in milliseconds, costs in units of currency.

A cost "per 1000" is that of 1000 requests of one row, or of 1000 rows of one stage.
"""

import enum

import msgspec

PER = 1000
"""Requests, or rows, that costs are given for."""


class TableSource(enum.StrEnum):
    """Where the latencies of a model on a kind of partition come from."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    TIMED_NOW = "timed now"


class TableUsed(msgspec.Struct, frozen=True):
    """The latencies that were planned with; `notes` are sentences on what is missing, stale or odd."""

    model: str
    kind: str
    source: TableSource
    notes: tuple[str, ...] = ()


class Arithmetic(msgspec.Struct, frozen=True):
    """What a stage's figures are made of.

    `kind_rate` rows a second come to `servers` partitions, less what other stages take of them. A batch of `rows` (of
    the stage) computes for `compute_ms`, a full one for `full_ms`, one of `rows99` for `compute99_ms`; `hand_off_ms`
    comes to each. p99 is the latter with the longest of the three waits and `beside99_ms`, that for stages which are
    there at the same time. `left_ms` of the objective are left when the
    stage has ended, in which all that follows costs `rest_cost` a row (None: there is no time for it).
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

    `probability` is the share of rows that it runs for, `rate` these rows a second. `counted` says whether its time
    counts at the percentile, `critical` whether it is on the longest way. p50, p99 and `utilisation` are None when its
    rate is more than the partitions can do. A combiner has model and kind "" and no arithmetic.
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


class Configuration(msgspec.Struct, frozen=True):
    """One choice for every stage; p50 and p99 are None when some stage has none."""

    stages: tuple[StageAnswer, ...]
    p50_ms: float | None
    p99_ms: float | None
    cost_per_1000: float


class FrontPoint(msgspec.Struct, frozen=True):
    """With an objective of at least `p99_ms` the pipeline can be had for `cost_per_1000`."""

    p99_ms: float
    cost_per_1000: float


class RunnerUp(msgspec.Struct, frozen=True):
    """The second best configuration; `stages` are those in which it differs, as `STAGE=MODEL*BATCH@KIND`."""

    stages: tuple[str, ...]
    p99_ms: float
    cost_per_1000: float
    reason: str


class Bottleneck(msgspec.Struct, frozen=True):
    """The stage that takes most of the partitions' time.

    `capacity` is how many rows a second all partitions could do of its model and nothing else, `utilisation` the part
    of their time that its rows take at the best batch size, `total_utilisation` that of all stages, on the partitions
    where it is most. Partitions count that hold the models.
    """

    stage: str
    model: str
    capacity: float
    utilisation: float
    total_utilisation: float


class Infeasible(msgspec.Struct, frozen=True):
    """Why no configuration fits: `stage` contributes most to it.

    `excess_ms` is what the quickest takes beyond the objective (None: the rate is the trouble), `excess_rate` the rate
    beyond what the partitions can do. `nearest_slo_ms` is the least objective at this rate, `nearest_rate` the highest
    rate at this objective; None where there is none.
    """

    stage: str
    reason: str
    excess_ms: float | None
    excess_rate: float | None
    nearest_slo_ms: float | None
    nearest_rate: float | None


class Limit(enum.StrEnum):
    """What keeps the rate from being higher."""

    CAPACITY = "capacity"
    LATENCY = "latency"


class PlanAnswer(msgspec.Struct, frozen=True):
    """All that was found out. `rate` is in requests a second; `partitions` counts them by kind.

    `residency` are the models that each partition holds, by its name; empty when there is room for all everywhere.

    `plan` is the quickest configuration, which misses the objective, when none fits. `front` is empty when the rate is
    too much for the partitions. `exact_cost_per_1000` is the least there is (None: nothing fits).
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
    plan: Configuration
    front: tuple[FrontPoint, ...]
    runner_up: RunnerUp | None
    bottleneck: Bottleneck
    highest_rate: float | None
    limited_by: Limit | None
    lowest_slo_ms: float | None
    exact_cost_per_1000: float | None
    infeasible: Infeasible | None
