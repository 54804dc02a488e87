"""Demand: how many partitions of each class the rates of the pipelines keep busy.

The plan in force says which models run, and how the objective of a pipeline is split between its stages. It does not
say how many partitions that takes, because a plan uses all partitions that are up: with many of them it takes small
batches. So the demand is that of the largest batches that the objective allows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.interface.plan_data import PipelinePlan
from sluice.batcher.state import ModelState, PipelineState
from sluice.models.units import INFINITE_NS, NS_PER_S

_ROUNDING = 1e-9
UNKNOWN_LOAD = 1e-9
"""The load of rows whose time on a class is not known yet: next to nothing, but some."""


class StageRows(NamedTuple):
    """Rows of one stage: `rows` a second of a model, each to be done within `budget_ns`."""

    model: ModelState
    rows: float
    budget_ns: int


class PartitionPool(NamedTuple):
    """Equal partitions that may run models: `size` of them, each busy for `target` of its time at most.

    `models` are the keys of the models that they may run (None: all).
    """

    kind: str
    models: frozenset[str] | None
    size: int
    target: float
    price: float = 0.0

    @property
    def room(self) -> float:
        """The partitions that they are, at their target."""
        return self.size * self.target

    def may_run(self, model: ModelState) -> bool:
        """True if they may run a model."""
        return self.models is None or model.config.key in self.models


def streams(
    pipelines: Mapping[str, PipelineState], rates: Mapping[str, float], plans: Mapping[str, PipelinePlan]
) -> list[StageRows]:
    """The rows of all stages at these rates, in rows a second by pipeline, as the last requests were predicted."""
    found = []
    for name, pipeline in pipelines.items():
        rate = rates.get(name, 0.0)
        if rate > 0:
            for stage in pipeline.stages:
                rows = rate * pipeline.reach[stage.index]
                if stage.model is not None and rows > 0:
                    found.append(StageRows(stage.model, rows, _budget_ns(pipeline, stage.index, plans.get(name))))
    return found


def _budget_ns(pipeline: PipelineState, index: int, plan: PipelinePlan | None) -> int:
    """The time that a stage may take: its part of the plan's time, or of the predicted one, of the whole objective."""
    objective_ns = pipeline.config.slo_ns
    if not objective_ns:
        return INFINITE_NS
    if plan is not None and plan.latency_ns and plan.stages[index].latency_ns:
        return objective_ns * plan.stages[index].latency_ns // plan.latency_ns
    stage_ns = pipeline.stages[index].service_ns(0)
    whole_ns = pipeline.critical_path_ns
    return objective_ns * stage_ns // whole_ns if 0 < stage_ns < whole_ns else objective_ns


def row_ns(stream: StageRows, kind: str, hand_off_ns: int) -> float | None:
    """The time that a row takes of a partition of a kind; None while nothing is known of the model there.

    Batches are as large as the model's policy makes them under load, as far as a request that just missed one is in
    time with the next one.
    """
    model = stream.model
    estimate = model.estimates.get(kind)
    if estimate is None:
        return None
    most = min(model.full_rows(estimate), model.config.max_batch)
    rows = max(estimate.rows_within((stream.budget_ns - hand_off_ns) // 2, most), 1)
    return float(estimate.row_ns(rows))


class Demand:
    """The partitions of each of the `classes` that streams keep busy, with other partitions (`fixed`) beside them.

    Partitions that are there in any case take what they can at their target. The rest of a stream goes to the class
    where its rows cost the least, as far as that may grow, then to the next one. The last one gets what no class has
    room for. Rows of a stream spread over its hosts by what they can do. Times of rows are remembered, so an object is
    good for one instant.
    """

    def __init__(self, fixed: Sequence[PartitionPool], classes: Sequence[PartitionPool], hand_off_ns: int) -> None:
        self._fixed = fixed
        self._classes = classes
        self._hand_off_ns = hand_off_ns
        self._own: dict[tuple[ModelState, int], list[tuple[int, float, float]]] = {}
        self._options: dict[tuple[ModelState, int], list[tuple[int, float | None]]] = {}

    def loads(self, wanted: Iterable[StageRows]) -> list[float]:
        """For each class, how many of its partitions would be busy all the time."""
        everything = list(wanted)
        loads = [0.0] * len(self._classes)
        for stream, kept in zip(everything, self._kept_shares(everything), strict=True):
            rows = stream.rows * (1 - kept)
            options = self._options_of(stream) if rows > stream.rows * _ROUNDING else []
            for place, (number, took_ns) in enumerate(options):
                if took_ns is None:
                    loads[number] += UNKNOWN_LOAD
                    break
                load = rows * took_ns / NS_PER_S
                if place < len(options) - 1:
                    load = min(load, max(self._classes[number].room - loads[number], 0.0))
                loads[number] += load
                rows -= load * NS_PER_S / took_ns
                if rows <= stream.rows * _ROUNDING:
                    break
        return loads

    def _options_of(self, stream: StageRows) -> list[tuple[int, float | None]]:
        """The classes that may run a stream with the time of a row, the cheapest first; unknown times come last."""
        key = stream.model, stream.budget_ns
        if key not in self._options:
            found = []
            for number, hosts in enumerate(self._classes):
                if hosts.may_run(stream.model):
                    took_ns = row_ns(stream, hosts.kind, self._hand_off_ns)
                    found.append((took_ns is None, (took_ns or 0.0) * hosts.price, number, took_ns))
            found.sort(key=lambda option: option[:3])
            self._options[key] = [(number, took_ns) for _, _, number, took_ns in found]
        return self._options[key]

    def _own_hosts_of(self, stream: StageRows) -> list[tuple[int, float, float]]:
        """The fixed partitions that run a stream: their number, their share of its rows, and the time of a row."""
        key = stream.model, stream.budget_ns
        if key not in self._own:
            found = []
            for number, hosts in enumerate(self._fixed):
                took_ns = row_ns(stream, hosts.kind, self._hand_off_ns) if hosts.may_run(stream.model) else None
                if took_ns is not None and hosts.size:
                    found.append((number, hosts.size / max(took_ns, 1.0), took_ns))
            total = sum(rate for _, rate, _ in found)
            self._own[key] = [(number, rate / total, took_ns) for number, rate, took_ns in found]
        return self._own[key]

    def _kept_shares(self, wanted: Sequence[StageRows]) -> list[float]:
        """For each stream, the share of its rows that fixed partitions take."""
        work = [0.0] * len(self._fixed)
        for stream in wanted:
            for number, share, took_ns in self._own_hosts_of(stream):
                work[number] += stream.rows * share * took_ns / NS_PER_S
        kept = [min(1.0, hosts.room / load) if load else 1.0 for hosts, load in zip(self._fixed, work, strict=True)]
        return [sum(share * kept[number] for number, share, _ in self._own_hosts_of(stream)) for stream in wanted]
