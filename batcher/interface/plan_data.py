"""Plans: what the scheduler goes by at run time, and what they are made from; plain data, which a journal can hold."""

import msgspec

from sluice.models.profiles.latency_table import LatencyTable


class CostToGo(msgspec.Struct, frozen=True):
    """A step function: the least cost of a row that can be had within a time, both (steps,).

    `within_ns` ascends and `cost` descends: with at least `within_ns[i]` and less than `within_ns[i + 1]` the cost is
    `cost[i]`; with less than `within_ns[0]` it cannot be done. Nothing left to do is `CostToGo((0,), (0.0,))`.
    """

    within_ns: tuple[int, ...]
    cost: tuple[float, ...]


class FixedOption(msgspec.Struct, frozen=True, tag="fixed"):
    """A stage keeps to batches of `rows` rows on partitions of `kind` until the next plan.

    A batch closes when it is full, or when its first row has waited for `wait_ns`.
    """

    rows: int
    kind: str
    wait_ns: int


class GroupSearch(msgspec.Struct, frozen=True, tag="group"):
    """A stage and those that follow it in its group may take the part `share` of the time that a request has left.

    The rest of its plan is then that of its group only, and its options are ranked without regard to what is free.
    """

    share: float


class StagePlan(msgspec.Struct, frozen=True):
    """One stage of a plan: run `model` (a variant) in batches of `batch` on partitions of `kind`.

    `latency_ns` is its predicted 99th percentile, waits included; `cost` of a row it runs for. `rest` is the cost of
    all that follows it, against the time that is left when it ends. A combiner has model and kind "" and takes no time.
    Without a `rule`, batch size and kind are chosen again at every dispatch, of all that can take work.
    """

    model: str
    batch: int
    kind: str
    latency_ns: int
    cost: float
    rest: CostToGo
    rule: FixedOption | GroupSearch | None = None


class PipelinePlan(msgspec.Struct, frozen=True):
    """The plan of one pipeline.

    Without `feasible` it is the quickest there is, which misses the objective, or, where the rate is too much for the
    partitions, the best for what is admitted.
    """

    pipeline: str
    stages: tuple[StagePlan, ...]
    latency_ns: int
    cost: float
    feasible: bool


class Plan(msgspec.Struct, frozen=True):
    """The plans of all pipelines, and which models each partition is to hold (by partition name, sorted keys).

    Partitions that `residency` does not name keep what they hold. `failed` says, by pipeline, what kept one from being
    planned that should not have: it goes on by the plan before.
    """

    pipelines: tuple[PipelinePlan, ...]
    residency: dict[str, tuple[str, ...]] = {}
    failed: dict[str, str] = {}


class Way(msgspec.Struct, frozen=True):
    """The way to partitions on other nodes, over links of the class `link`: a message there and back, and each byte."""

    link: str
    round_trip_ns: int
    ns_per_byte: float


def kind_over(kind: str, link: str) -> str:
    """The name of a kind of partitions behind a class of links, which is a kind of its own in plans."""
    return f"{kind} over {link}"


class Observed(msgspec.Struct, frozen=True):
    """The input of a plan, beside the spec.

    `tables` are latency tables by model key and kind of partition, as corrected by what was seen. `rates` are rows a
    second by pipeline. `probabilities` are, by pipeline, one a stage: the share of the rows offered to it that it runs.
    `held` are the models that partitions hold, by partition name, `up` the partitions that can work now (none: all),
    `gone` those that have been lost for so long that their models are to be held by others. `ways` are the ways to
    partitions that are not on the gateway's own machine, by partition name.
    """

    tables: dict[str, dict[str, LatencyTable]]
    rates: dict[str, float]
    probabilities: dict[str, tuple[float, ...]]
    held: dict[str, tuple[str, ...]] = {}
    up: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    ways: dict[str, Way] = {}
