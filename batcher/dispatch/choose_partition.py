"""Choice of a batch's partition: the cheapest open one that is in time, preferably that of the stage before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from sluice.batcher.fleet.member_table import is_idle
from sluice.batcher.fleet.partition_group import are_of_kinds, first_available
from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.interface.planner_protocol import LiveOption, Planner, Ranker
from sluice.batcher.places.planned_batches import run_together, slack_ns
from sluice.batcher.policies.base import Choice
from sluice.batcher.queues.queue import Queue
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


class NextBatch(NamedTuple):
    """A batch: its partition, its rows, and the stage deadline (ns) from which entries are taken."""

    partition: PartitionState
    rows: int
    from_ns: int


class PartitionChooser:
    """Chooses the partition and size of a queue's next batch; `planner` ranks the options if there are several."""

    __slots__ = ("_hand_off_ns", "_planner", "_rankings")

    def __init__(self, planner: Planner | None, hand_off_ns: int) -> None:
        self._planner = planner
        self._hand_off_ns = hand_off_ns
        self._rankings: dict[StageState, _Ranking] = {}

    def choose(
        self,
        queue: Queue,
        head: Entry,
        model: ModelState,
        choice: Choice,
        partition: PartitionState,
        takes: Callable[[PartitionState], bool],
        now_ns: int,
    ) -> NextBatch | int:
        """The partition of a queue's next batch and its rows, or until when the entries are left to other partitions.

        The open options are ranked by cost, later stages included, for the first entry that is in time. The first
        option that fits is taken (ESG_Dispatch, HPDC 2024), unless it is smaller than is worthwhile while more rows
        wait: the time that a plan leaves to later stages includes long waits under load, and small batches would make
        these waits longer. Then what is planned for the group of `partition` runs. `takes` tells whether another one
        takes a batch now, or is kept for what is planned for it. Nothing is kept where a plan says what the rest of a
        pipeline costs in the time that is left, and there are several kinds of partitions (`_cheapest`).
        """
        if queue.host is not None:
            return NextBatch(partition, choice.rows, 0)
        groups = model.groups
        stage = head.request.pipeline.stages[head.stage]
        only = len(groups) == 1 and (stage.cost_to_go is None or len(stage.cost_to_go.cost) == 1)
        has_kinds = self._planner is not None and stage.cost_to_go is not None and are_of_kinds(groups)
        if not model.by_deadline or (head.late and not has_kinds) or stage.model is not model:
            return NextBatch(self.local(head, partition, now_ns), choice.rows, 0)
        if only or queue.only is not None:
            return self._planned(queue, head, model, choice.rows, self.local(head, partition, now_ns), now_ns)
        if self._planner is None:
            return self._planned(queue, head, model, choice.rows, partition, now_ns)
        hosts = [partition if group is partition.group else first_available(group, now_ns) for group in groups]
        if has_kinds:  # partitions with linked batches keep to what is planned
            hosts = [None if host is None or (host.linked and host is not partition) else host for host in hosts]
        waits_ns = [INFINITE_NS if host is None else host.start_ns(now_ns) - now_ns for host in hosts]
        if has_kinds:
            return self._cheapest(queue, head, model, choice, hosts, waits_ns, now_ns)
        deadline_ns = head.stage_deadline_ns if stage.cost_to_go is None else head.request.deadline_ns
        remaining_ns = deadline_ns - now_ns - self._hand_off_ns
        least_rows = [model.estimates[group.kind].least_rows(queue.rows) for group in groups]
        for option in self.ranked(stage, model, remaining_ns, queue.rows, waits_ns, min(least_rows)):
            if option.rows >= least_rows[option.group]:
                host = hosts[option.group]
                assert host is not None, "only what is open is ranked"
                if host is not partition and host.planned and not takes(host):
                    continue
                batch = self._planned(queue, head, model, option.rows, self.local(head, host, now_ns), now_ns)
                if isinstance(batch, NextBatch) or host is partition:
                    return batch
        return self._planned(queue, head, model, choice.rows, partition, now_ns)

    def _cheapest(
        self,
        queue: Queue,
        head: Entry,
        model: ModelState,
        choice: Choice,
        hosts: Sequence[PartitionState | None],
        waits_ns: list[int],
        now_ns: int,
    ) -> NextBatch | int:
        """The cheapest option of the open `hosts`, one for each group, that is in time with the rest of the pipeline.

        What is open and as cheap is not kept for what is planned there, which may run elsewhere as well: waits for
        partitions of one kind while others are idle would cost more time than they give. An entry that no open
        partition runs in time waits for a quicker one, and those behind it that have more time go before it. What is
        late in any case takes the cheapest partition, so that no other one has to wait for it.
        """
        groups, hand_off_ns = model.groups, self._hand_off_ns
        open_to = [number for number, host in enumerate(hosts) if host is not None]
        if head.late:
            prices = [group.price * model.estimates[group.kind].service_ns(1) for group in groups]
            cheapest = min(open_to, key=prices.__getitem__)
            rows = min(choice.rows, model.estimates[groups[cheapest].kind].max_rows)
            return self._batch_on(hosts[cheapest], head, rows, 0, now_ns)
        ends_ns = [
            wait_ns + model.estimates[group.kind].service_ns(1) + group.way_ns(model, 1)
            for group, wait_ns in zip(groups, waits_ns, strict=True)
        ]
        quickest = min(open_to, key=ends_ns.__getitem__)
        reach_ns = now_ns + hand_off_ns + ends_ns[quickest]
        first: Entry | None = head
        if head.stage_deadline_ns < reach_ns and (first := queue.first_not_before(reach_ns)) is None:
            latest_ns = head.stage_deadline_ns - hand_off_ns - model.quickest_ns
            return latest_ns if latest_ns > now_ns else self._batch_on(hosts[quickest], head, 1, 0, now_ns)
        assert first is not None, "else no entry is in time"
        from_ns = 0 if first is head else first.stage_deadline_ns
        stage = first.request.pipeline.stages[first.stage]
        if stage.model is model:
            deadline_ns = first.stage_deadline_ns if stage.cost_to_go is None else first.request.deadline_ns
            remaining_ns = deadline_ns - now_ns - hand_off_ns
            for option in self.ranked(stage, model, remaining_ns, queue.rows, waits_ns, 1):
                if option.rows >= model.estimates[groups[option.group].kind].least_rows(queue.rows):
                    return self._batch_on(hosts[option.group], first, option.rows, from_ns, now_ns)
        estimate = model.estimates[groups[quickest].kind]
        spare_ns = first.stage_deadline_ns - reach_ns + estimate.service_ns(1)
        rows = estimate.rows_within(spare_ns, min(choice.rows, estimate.max_rows)) or 1
        return self._batch_on(hosts[quickest], first, rows, from_ns, now_ns)

    def _batch_on(self, host: PartitionState | None, first: Entry, rows: int, from_ns: int, now_ns: int) -> NextBatch:
        assert host is not None, "only what is open is chosen"
        return NextBatch(self.local(first, host, now_ns), rows, from_ns)

    def ranked(
        self,
        stage: StageState,
        model: ModelState,
        remaining_ns: int,
        rows: int,
        waits_ns: list[int],
        least_rows: int,
    ) -> list[LiveOption]:
        """The options for a stage's next batch, best first (see `planner_protocol.Ranker`); one wait for each group."""
        assert self._planner is not None, "without a planner nothing is ranked"
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
                LiveOption(number, size, service_ns + group.way_ns(model, size), service_ns * group.price / NS_PER_S)
                for number, group in enumerate(model.groups)
                for size in model.estimates[group.kind].sizes
                for service_ns in [model.estimates[group.kind].service_ns(size)]
            ]
            ranker = self._planner.ranker(options, stage.cost_to_go or NOTHING_LEFT)
            known = self._rankings[stage] = _Ranking(
                options, ranker, model, model.groups, stage.plan_changes, model.limit_changes, model.batches
            )
        return [known.options[option] for option in known.ranker.rank(remaining_ns, rows, waits_ns, least_rows)]

    def forget(self, stage: StageState) -> None:
        """Forget a stage of a removed pipeline."""
        self._rankings.pop(stage, None)

    def _planned(
        self, queue: Queue, head: Entry, model: ModelState, rows: int, partition: PartitionState, now_ns: int
    ) -> NextBatch | int:
        """The next batch that is planned for a partition, with the first entries that are in time in it.

        If none is planned for it, the first entries run here, unless they are planned for partitions of another kind
        and would be late here, or what is planned for this one would be late behind them.
        """
        estimate = model.estimates[partition.kind]
        place = head.place
        batches = run_together(partition, queue.key, now_ns)
        planned = min(ceil(sum([batch.rows for batch in batches])), estimate.max_rows)
        if place is None or place[0] in batches:
            return NextBatch(partition, max(rows, planned), 0)
        is_near = place[0].partition.group is partition.group
        ready_ns = partition.start_ns(now_ns) + self._hand_off_ns
        if not batches:
            delays = estimate.expected_ns(rows) > slack_ns(partition, queue.key, (), now_ns)[0]
            in_time = ready_ns + estimate.service_ns(rows) + partition.way_ns(model, rows) <= _due_ns(head)
            if is_near:
                latest_ns = place[0].latest_ns - place[0].length_ns
                return latest_ns if delays and latest_ns > now_ns else NextBatch(partition, rows, 0)
            return NextBatch(partition, rows, 0) if in_time and not delays else head.stage_deadline_ns
        left_ns = head.stage_deadline_ns - ready_ns
        if estimate.service_ns(planned) + partition.way_ns(model, planned) <= left_ns:
            fits = rows > planned and estimate.service_ns(rows) + partition.way_ns(model, rows) <= left_ns
            return NextBatch(partition, rows if fits else planned, 0)
        from_ns = min([batch.from_ns for batch in batches])
        if queue.first_not_before(from_ns) is None:  # its rows have not come yet
            return NextBatch(partition, rows, 0) if is_near else head.stage_deadline_ns
        return NextBatch(partition, planned, from_ns)

    @staticmethod
    def local(entry: Entry, host: PartitionState, now_ns: int) -> PartitionState:
        """The partition that ran the stage before, if it is as free as its equal `host`; or a free one on its node."""
        near = entry.request.ran_on
        if near is None:
            return host
        place = entry.place
        is_planned = near.node is not None and near.planned and (place is None or place[0].partition is not near)
        if near.group is host.group and near.ready and not near.batches and not near.throttled and not is_planned:
            return near
        if near.node is None or near.node is host.node or not entry.follows:
            return host
        equals = [each for each in near.node.partitions.values() if each.group is host.group]
        return next((each for each in equals if is_idle(each, now_ns)), host)


def _due_ns(entry: Entry) -> int:
    """When a stage has to end, so that the batches of the next ones can start in time."""
    request = entry.request
    due_ns = entry.stage_deadline_ns
    for index in request.pipeline.stages[entry.stage].dependents:
        if (place := request.places[index]) is not None:
            due_ns = min(due_ns, place[0].latest_ns - place[0].length_ns)
    return due_ns
