"""Pipelines as the scheduler runs them: what each stage waits for, how long the rest takes, how much work a row is."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.batcher.estimates.demand import Demand
from sluice.batcher.estimates.latency import QUANTILE, LatencyEstimate
from sluice.batcher.estimates.rate import RateEstimate
from sluice.batcher.estimates.recent_rows import Inflow
from sluice.batcher.interface.config import PipelineConfig, StageConfig
from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.interface.planner_protocol import LiveOption, Planner, Ranker
from sluice.batcher.prediction.lone_run import Span, lone_run
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.reservations.slots import Precedence
from sluice.batcher.state.model import ModelState
from sluice.batcher.state.pool import PartitionGroup
from sluice.models.pipelines.pipeline import Late
from sluice.models.units import NS_PER_S

RANKED_BATCHES = 16
"""A stage is ranked by estimates that are this many batches of its model old at most."""
NOTHING_LEFT = CostToGo((0,), (0.0,))

PROBABILITY_WEIGHT = 0.02
"""Weight of one request in the smoothed share of rows that a conditional stage runs for."""

Shares = tuple[tuple[PartitionGroup, int], ...]
"""(group, expected nanoseconds of its partitions that one row of a request takes)."""


class Work:
    """The work of a row of a request in each group, stage by stage and in all, as far as it is known.

    That is the `expected` work of a row, or `whole`, that of a row which runs the stage.
    """

    __slots__ = ("_whole", "stages", "total")

    def __init__(self, expected: tuple[Shares, ...], whole: tuple[Shares, ...]) -> None:
        self.stages = stages = expected
        self._whole = whole
        sums: dict[PartitionGroup, int] = {}
        for shares in stages:
            for group, row_ns in shares:
                sums[group] = sums.get(group, 0) + row_ns
        self.total: Shares = tuple(sums.items())

    def known(self, stage: int, share: float) -> Work:
        """The work when it is known which share of the rows a stage runs for."""
        shares = self._whole[stage]
        if share < 1:
            shares = tuple((group, round(row_ns * share)) for group, row_ns in shares)
        return Work((*self.stages[:stage], shares, *self.stages[stage + 1 :]), self._whole)


class StageState:
    """One stage: `waits_for` are the stages whose rows or verdicts it needs, `dependents` those that need its.

    `remaining_path_ns` is the predicted time from this stage's end to the pipeline's end along the longest path. `probability`
    is the smoothed share of the rows offered to a conditional stage that it runs for, 1 until something is known.
    `queue` is the queue of a stage that has only one, as where all dimensions of its inputs are fixed. `rest` is what
    the plan says of all that follows; None without a plan, or when nothing follows that leaves a choice.
    """

    __slots__ = (
        "_groups",
        "_options",
        "_ranked_batches",
        "_ranker",
        "config",
        "dependents",
        "index",
        "model",
        "probability",
        "queue",
        "remaining_path_ns",
        "rest",
        "waits_for",
    )

    def __init__(self, index: int, config: StageConfig, model: ModelState | None) -> None:
        self.index = index
        self.config = config
        self.model = model
        self.waits_for = set(config.sources) | ({config.when.stage} if config.when else set())
        self.dependents: list[int] = []
        self.probability = 1.0
        self.remaining_path_ns = 0
        self.queue: Queue | None = None
        self.rest: CostToGo | None = None
        self._options: list[LiveOption] = []
        self._groups: list[PartitionGroup] = []
        self._ranker: Ranker | None = None
        self._ranked_batches = 0
        self.run(model)

    def run(self, model: ModelState | None) -> None:
        """Have requests that reach the stage from now on run by `model`, one of its variants."""
        self.model = model
        self._ranker = None
        self.queue = None
        if model is not None and (model.mixes_keys or not (self.config.request_keyed or self.config.source_keyed)):
            self.queue = model.queue_of("")

    def follow(self, rest: CostToGo | None) -> None:
        """Go by another plan."""
        self.rest = rest
        self._ranker = None

    def ranked(
        self, planner: Planner, remaining_ns: int, rows: int, waits_ns: list[int], least_rows: int
    ) -> list[LiveOption]:
        """The options for the next batch, best first (see `planner_protocol.Ranker`); one wait a group of the model."""
        model = self.model
        assert model is not None, "a combiner has no options"
        outdated = model.batches - self._ranked_batches >= RANKED_BATCHES or model.groups is not self._groups
        if self._ranker is None or outdated:
            self._ranked_batches, self._groups = model.batches, model.groups
            self._options = [
                LiveOption(number, size, service_ns, service_ns * group.price / NS_PER_S)
                for number, group in enumerate(model.groups)
                for size in model.estimates[group.kind].sizes
                for service_ns in [model.estimates[group.kind].service_ns(size)]
            ]
            self._ranker = planner.ranker(self._options, self.rest or NOTHING_LEFT)
        return [self._options[option] for option in self._ranker.rank(remaining_ns, rows, waits_ns, least_rows)]

    def service_ns(self, hand_off_ns: int) -> int:
        """Predicted time of the stage in a batch of typical size; 0 for a combiner."""
        model = self.model
        if model is None or not model.estimates:
            return 0
        return min(estimate.service_ns(model.usual_rows) for estimate in model.estimates.values()) + hand_off_ns


Step = tuple[StageState, ModelState, int, float]
"""(a stage whose work may have to wait, its model, the time from its start to the pipeline's end if nothing else has to
wait, the time that a row takes of all partitions that hold the model), both in nanoseconds."""


class PipelineState:
    """One pipeline: its stages and the predictions for a request that arrives now.

    Predictions are renewed by `refresh`, when `stale`: not for every request. `degraded` says that some partition that
    it could use is not there. `critical_path_ns` is what a request takes that finds all partitions idle: its stages may have to
    wait for each other where they are `side_by_side`. `steps` are the stages that a request may have to wait for.
    `reach` is the expected number of stages of a model that a row runs; `demand` is what came of it lately, where
    models are loaded on demand; `inflow` are the admitted rows of a pipeline that is `shared`, which means that others
    use one of its models, too. Where places are reserved, `asked` are all that came of it, and `rows_under_way` those
    that were admitted and have no outcome yet.
    """

    __slots__ = (
        "all_stages",
        "asked",
        "config",
        "critical_path_ns",
        "degraded",
        "demand",
        "evicts",
        "expected_runs",
        "inflow",
        "last_probe_ns",
        "missing",
        "number",
        "outstanding",
        "precedence",
        "rate",
        "roots",
        "rows_under_way",
        "shared",
        "side_by_side",
        "single",
        "stage_count",
        "stages",
        "stale",
        "steps",
        "work",
    )

    def __init__(self, number: int, config: PipelineConfig, models: dict[str, ModelState]) -> None:
        self.number = number
        self.config = config
        self.stages = [
            StageState(index, stage, models[stage.model] if stage.model is not None else None)
            for index, stage in enumerate(config.stages)
        ]
        for stage in self.stages:
            for source in stage.waits_for:
                self.stages[source].dependents.append(stage.index)
            for key in stage.config.variants or filter(None, (stage.config.model,)):
                if self not in models[key].pipelines[-1:]:
                    models[key].pipelines.append(self)
        self.stage_count = len(self.stages)
        self.all_stages = (1 << self.stage_count) - 1
        self.missing = [len(stage.waits_for) for stage in self.stages]
        self.roots = [stage for stage in self.stages if not stage.waits_for]
        self.single = self.stage_count == 1 and not self.stages[0].config.recalls
        self.side_by_side = _side_by_side(self.stages)
        self.precedence = Precedence(
            [stage.waits_for for stage in self.stages], [stage.model is not None for stage in self.stages]
        )
        self.evicts = config.late is Late.EVICT
        self.outstanding = 0
        self.rows_under_way = 0
        self.last_probe_ns: int | None = None
        self.critical_path_ns = 0
        self.rate = RateEstimate()
        self.demand = Demand()
        self.inflow = Inflow()
        self.asked = Inflow()
        self.expected_runs: dict[ModelState, float] = {}
        self.shared = False
        self.stale = True
        self.degraded = True
        self.steps: list[Step] = []
        nothing: tuple[Shares, ...] = tuple(() for _ in self.stages)
        self.work = Work(nothing, nothing)

    def refresh(self, hand_off_ns: int) -> None:
        """Renew the predictions: `critical_path_ns`, the stages' tails, the work of a row and where it may have to wait."""
        reach = [1.0] * self.stage_count
        self.expected_runs = {}
        for stage in self.stages:
            reach[stage.index] = stage.probability * min((reach[source] for source in stage.waits_for), default=1.0)
            if stage.model is not None:
                self.expected_runs[stage.model] = self.expected_runs.get(stage.model, 0.0) + reach[stage.index]
        row_ns = {model: model.spread_row_ns for model in self.expected_runs}
        whole = tuple(() if stage.model is None else _shares(stage.model, row_ns[stage.model]) for stage in self.stages)
        expected = tuple(
            shares if share == 1 else tuple((group, round(group_ns * share)) for group, group_ns in shares)
            for shares, share in zip(whole, reach, strict=True)
        )
        self.work = Work(expected, whole)
        for stage in reversed(self.stages):
            stage.remaining_path_ns = max(
                (self._from_start_ns(self.stages[later], hand_off_ns) for later in stage.dependents), default=0
            )
        self.critical_path_ns = max(self._from_start_ns(stage, hand_off_ns) for stage in self.roots)
        spans: list[Span] = []
        if self.side_by_side:
            counts = [share > 1 - QUANTILE for share in reach]
            spans = lone_run(
                self.stages, counts, lambda model, estimate: estimate.service_ns(model.usual_rows) + hand_off_ns
            )
            self.critical_path_ns = max(self.critical_path_ns, *(end_ns for _, end_ns in spans))
        self.steps = self._steps(reach, row_ns, spans, hand_off_ns)
        self.shared = any(len(model.pipelines) > 1 for model in self.expected_runs)
        self.stale = False

    def _steps(
        self, reach: list[float], row_ns: dict[ModelState, float], spans: list[Span], hand_off_ns: int
    ) -> list[Step]:
        """The first stages, and later ones on other groups that too many rows reach for a few late ones not to matter.

        Of stages on the same groups one waits for all that is promised there: that which has the most to come. With
        `spans`, those of a lone request, the others of the request that run there after it are to come as well.
        """
        steps: list[Step] = []
        longest_ns: dict[frozenset[PartitionGroup], int] = {}
        for stage in self.stages:
            model = stage.model
            if model is None or not model.groups:
                continue
            groups = frozenset(model.groups)
            rest_ns = self._from_start_ns(stage, hand_off_ns)
            if spans:
                begin_ns = spans[stage.index][0]
                ends_ns = [
                    spans[other.index][1] + other.remaining_path_ns
                    for other in self.stages
                    if other.model is not None
                    and groups.issuperset(other.model.groups)
                    and spans[other.index][0] >= begin_ns
                ]
                rest_ns = max(rest_ns, max(ends_ns) - begin_ns)
            is_longest = rest_ns > longest_ns.get(groups, 0)
            if not stage.waits_for or (is_longest and reach[stage.index] > 1 - QUANTILE):
                steps.append((stage, model, rest_ns, row_ns[model]))
                longest_ns[groups] = max(rest_ns, longest_ns.get(groups, 0))
        return steps

    @staticmethod
    def _from_start_ns(stage: StageState, hand_off_ns: int) -> int:
        return stage.service_ns(hand_off_ns) + stage.remaining_path_ns

    def unloaded_latency_ns(self, hand_off_ns: int) -> int:
        """Time of a request by itself on an idle machine by the measured tables alone."""

        def took_ns(model: ModelState, estimate: LatencyEstimate) -> int:
            return estimate.profile_ns(1) + hand_off_ns

        return max(end_ns for _, end_ns in lone_run(self.stages, [True] * self.stage_count, took_ns))


def _side_by_side(stages: Sequence[StageState]) -> bool:
    """Whether two stages of a model may be there at the same time: neither is before the other."""
    before: list[int] = []
    earlier = 0
    for stage in stages:
        mask = 0
        for source in stage.waits_for:
            mask |= before[source] | 1 << source
        before.append(mask)
        if stage.config.model is not None:
            if earlier & ~mask:
                return True
            earlier |= 1 << stage.index
    return False


def _shares(model: ModelState, row_ns: float) -> Shares:
    """The work of a row, spread over the partitions that hold the model so that all are as busy."""
    return tuple((group, round(row_ns * len(group.partitions))) for group in model.groups)
