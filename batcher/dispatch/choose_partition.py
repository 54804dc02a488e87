"""Choice of a batch's partition: the cheapest open one that is in time, preferably that of the stage before."""

from typing import NamedTuple

from sluice.batcher.estimates.latency import DEEP
from sluice.batcher.fleet.partition_group import first_available, start_ns
from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.interface.planner_protocol import LiveOption, Planner, Ranker
from sluice.batcher.policies.base import Choice
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state import Entry, ModelState, PartitionGroup, PartitionState, StageState
from sluice.models.units import INFINITE_NS, NS_PER_S

RANKED_BATCHES = 16
"""The ranking of a stage is renewed after this many batches of its model."""
NOTHING_LEFT = CostToGo((0,), (0.0,))


class _Ranking(NamedTuple):
    """The options of a stage and their ranker, with the inputs that they were computed from."""

    options: list[LiveOption]
    ranker: Ranker
    model: ModelState
    groups: list[PartitionGroup]
    plan_changes: int
    limit_changes: int
    batches: int


class PartitionChooser:
    """Chooses the partition and size of a queue's next batch; `planner` ranks the options if there are several."""

    __slots__ = ("_hand_off_ns", "_planner", "_rankings")

    def __init__(self, planner: Planner | None, hand_off_ns: int) -> None:
        self._planner = planner
        self._hand_off_ns = hand_off_ns
        self._rankings: dict[StageState, _Ranking] = {}

    def choose(
        self, queue: Queue, head: Entry, model: ModelState, choice: Choice, partition: PartitionState, now_ns: int
    ) -> tuple[PartitionState, int, int] | None:
        """The partition of a queue's next batch, its rows, and the deadline from which entries are taken.

        The open options are ranked by cost, later stages included, for the first entry that is in time. The first
        option that fits is taken (ESG_Dispatch, HPDC 2024), unless it is smaller than is worthwhile while more rows
        wait: the time that a plan leaves to later stages includes long waits under load, and small batches would make
        these waits longer. Then `_worthwhile` sizes the batch on `partition`. None leaves the entries to another
        partition.
        """
        groups = model.groups
        stage = head.request.pipeline.stages[head.stage]
        only = len(groups) == 1 and (stage.cost_to_go is None or len(stage.cost_to_go.cost) == 1)
        if only or self._planner is None or not model.by_deadline or head.late or stage.model is not model:
            return self._local(head, partition), choice.rows, 0
        hosts = [first_available(group, now_ns) for group in groups]
        waits_ns = [INFINITE_NS if host is None else host.start_ns(now_ns) - now_ns for host in hosts]
        deadline_ns = head.stage_deadline_ns if stage.cost_to_go is None else head.request.deadline_ns
        remaining_ns = deadline_ns - now_ns - self._hand_off_ns
        least_rows = [model.estimates[group.kind].least_rows(queue.rows) for group in groups]
        for option in self._ranked(stage, model, self._planner, remaining_ns, queue.rows, waits_ns, min(least_rows)):
            if option.rows >= least_rows[option.group]:
                host = hosts[option.group]
                assert host is not None, "only what is open is ranked"
                return self._local(head, host), option.rows, 0
        return self._worthwhile(queue, head, model, choice, partition, now_ns)

    def _ranked(
        self,
        stage: StageState,
        model: ModelState,
        planner: Planner,
        remaining_ns: int,
        rows: int,
        waits_ns: list[int],
        least_rows: int,
    ) -> list[LiveOption]:
        """The options for a stage's next batch, best first (see `planner_protocol.Ranker`); one wait for each group."""
        known = self._rankings.get(stage)
        if (
            known is None
            or known.model is not model
            or known.groups is not model.groups
            or known.plan_changes != stage.plan_changes
            or known.limit_changes != model.limit_changes
            or model.batches - known.batches >= RANKED_BATCHES
        ):
            options = [
                LiveOption(number, size, service_ns, service_ns * group.price / NS_PER_S)
                for number, group in enumerate(model.groups)
                for size in model.estimates[group.kind].sizes
                for service_ns in [model.estimates[group.kind].service_ns(size)]
            ]
            ranker = planner.ranker(options, stage.cost_to_go or NOTHING_LEFT)
            known = self._rankings[stage] = _Ranking(
                options, ranker, model, model.groups, stage.plan_changes, model.limit_changes, model.batches
            )
        return [known.options[option] for option in known.ranker.rank(remaining_ns, rows, waits_ns, least_rows)]

    def forget(self, stage: StageState) -> None:
        """Forget a stage of a removed pipeline."""
        self._rankings.pop(stage, None)

    def _worthwhile(
        self, queue: Queue, head: Entry, model: ModelState, choice: Choice, partition: PartitionState, now_ns: int
    ) -> tuple[PartitionState, int, int] | None:
        """The largest batch on a partition in time for the first entry, or for the first that allows a large batch.

        Earlier entries are left to a partition where they would be in time. If there is none, they go first in a small
        batch, provided that at the best rate its time would serve no more rows than it has plus those that would be
        late otherwise. With `DEEP` batches waiting they yield. Later stages are assumed to find their partition busy
        for half of their time.
        """
        estimate = model.estimates[partition.kind]
        ready_ns = partition.start_ns(now_ns) + self._hand_off_ns
        ready_ns += head.request.pipeline.stages[head.stage].remaining_path_ns // 2
        limit, least = min(queue.rows, estimate.efficient_rows), estimate.least_rows(queue.rows)
        rows = estimate.rows_within(head.stage_deadline_ns - ready_ns, limit)
        if rows >= least:
            return self._local(head, partition), rows, 0
        elsewhere = self._elsewhere(head, model, now_ns)
        entry = queue.first_not_before(ready_ns + estimate.service_ns(least))
        if entry is None and elsewhere:
            entry = queue.first_not_before(ready_ns + estimate.service_ns(1))
        if entry is None or entry is head:
            return None if elsewhere else (self._local(head, partition), choice.rows, 0)
        if rows and not elsewhere and queue.rows < DEEP * estimate.efficient_rows:
            lost = queue.live - queue.behind(entry.stage_deadline_ns - 1)
            if estimate.service_ns(rows) <= (rows + lost) * estimate.row_ns(limit):
                return self._local(head, partition), rows, 0
        rows = estimate.rows_within(entry.stage_deadline_ns - ready_ns, limit)
        return self._local(entry, partition), rows, entry.stage_deadline_ns

    def _elsewhere(self, entry: Entry, model: ModelState, now_ns: int) -> bool:
        """True if an entry would be in time on a partition that is not open yet."""
        return any(
            first_available(group, now_ns) is None
            and group.ready_count
            and start_ns(group, now_ns) + self._hand_off_ns + model.estimates[group.kind].service_ns(entry.rows)
            <= entry.stage_deadline_ns
            for group in model.groups
        )

    @staticmethod
    def _local(entry: Entry, host: PartitionState) -> PartitionState:
        """The partition that ran the stage before, if it is as free as its equal `host`."""
        near = entry.request.ran_on
        if near is not None and near.group is host.group and near.ready and not near.batches and not near.throttled:
            return near
        return host
