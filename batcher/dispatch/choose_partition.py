"""Where a batch runs: on the cheapest partition that is open and in time, near the stage before."""

from sluice.batcher.estimates.latency import DEEP
from sluice.batcher.interface.planner_protocol import FAR_NS, Planner
from sluice.batcher.policies.base import Choice
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state.model import ModelState, PartitionState
from sluice.batcher.state.request import Entry


class PartitionChooser:
    """Chooses where a queue's next batch runs; `planner` ranks where and how big, where there is a choice."""

    __slots__ = ("_hand_off_ns", "_planner")

    def __init__(self, planner: Planner | None, hand_off_ns: int) -> None:
        self._planner = planner
        self._hand_off_ns = hand_off_ns

    def place(
        self, queue: Queue, head: Entry, model: ModelState, choice: Choice, partition: PartitionState, now_ns: int
    ) -> tuple[PartitionState, int, int] | None:
        """Where a queue's next batch runs, how many rows it has, and from which deadline on its entries are taken.

        The options that are open now are ranked by what they cost with all that then has to follow, for the first entry
        that is in time. The first that fits is taken (ESG_Dispatch, HPDC 2024), unless it is smaller than is worthwhile
        while more waits: what a plan leaves to later stages includes long waits when much is to be done, and small
        batches would be the way to make them longer. Then the batch is `_worthwhile` on `partition`. None when the
        entries are left to another partition.
        """
        groups = model.groups
        stage = head.request.pipeline.stages[head.stage]
        only = len(groups) == 1 and (stage.rest is None or len(stage.rest.cost) == 1)
        if only or self._planner is None or not model.by_deadline or head.late or stage.model is not model:
            return self._local(head, partition), choice.rows, 0
        hosts = [group.open(now_ns) for group in groups]
        waits_ns = [FAR_NS if host is None else host.start_ns(now_ns) - now_ns for host in hosts]
        deadline_ns = head.stage_deadline_ns if stage.rest is None else head.request.deadline_ns
        remaining_ns = deadline_ns - now_ns - self._hand_off_ns
        least_rows = [model.estimates[group.kind].least_rows(queue.rows) for group in groups]
        for option in stage.ranked(self._planner, remaining_ns, queue.rows, waits_ns, min(least_rows)):
            if option.rows >= least_rows[option.group]:
                host = hosts[option.group]
                assert host is not None, "only what is open is ranked"
                return self._local(head, host), option.rows, 0
        return self._worthwhile(queue, head, model, choice, partition, now_ns)

    def _worthwhile(
        self, queue: Queue, head: Entry, model: ModelState, choice: Choice, partition: PartitionState, now_ns: int
    ) -> tuple[PartitionState, int, int] | None:
        """The largest batch on a partition that is in time for the first entry, or for the first that lets it be large.

        Entries before that one are left to a partition where they would be in time. Those that have none go first, in a
        small batch, if its time is not worth more rows at the best rate than it has and would be lost otherwise; with
        `DEEP` batches waiting they yield. Later stages are taken to find their partition busy for half of their time.
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
        """Whether an entry would be in time on a partition that is not open yet."""
        return any(
            group.open(now_ns) is None
            and group.ready_count
            and group.start_ns(now_ns) + self._hand_off_ns + model.estimates[group.kind].service_ns(entry.rows)
            <= entry.stage_deadline_ns
            for group in model.groups
        )

    @staticmethod
    def _local(entry: Entry, host: PartitionState) -> PartitionState:
        """The partition that ran the stage before, if it is as free as its equal `host`."""
        near = entry.request.ran_on
        if near is not None and near.group is host.group and near.ready and not near.batches and not near.held:
            return near
        return host
