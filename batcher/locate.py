"""Where a batch runs: on the cheapest partition that is open and in time, near the stage before."""

from batcher.decisions import ReleaseReason
from batcher.lifecycle import Entry
from batcher.placement import ModelState, PartitionState
from batcher.policy.base import Choice
from batcher.queue import Queue
from batcher.ranking import FAR_NS, Planner

DEEP = 2
"""Batches that a queue holds from which on full ones are not made smaller for the sake of one deadline."""


class Locator:
    """Chooses where a queue's next batch runs; `planner` ranks where and how big, where there is a choice."""

    __slots__ = ("_hand_off_ns", "_planner")

    def __init__(self, planner: Planner | None, hand_off_ns: int) -> None:
        self._planner = planner
        self._hand_off_ns = hand_off_ns

    def place(
        self, queue: Queue, model: ModelState, choice: Choice, partition: PartitionState, now_ns: int
    ) -> tuple[PartitionState, int, int] | None:
        """Where a queue's next batch runs, how many rows it has, and from which deadline on its entries are taken.

        The options that are open now are ranked by what they cost with all that then has to follow, for the first entry
        that is in time. The first that fits is taken (ESG_Dispatch, HPDC 2024). Where none fits but a partition that is
        not open would, the entry is left to that one, and the first entry that can make it here goes instead. None when
        there is no such entry.
        """
        head = queue.head()
        pools = model.pools
        stage = head.request.pipeline.stages[head.stage]
        only = len(pools) == 1 and (stage.rest is None or len(stage.rest.cost) == 1)
        if only or self._planner is None or not model.by_deadline or head.late or stage.model is not model:
            return self._local(head, partition), choice.rows, 0
        full = queue.rows >= DEEP * choice.rows and choice.reason is ReleaseReason.FULL
        waits_ns = []
        for pool in pools:
            host = pool.open(now_ns)
            waits_ns.append(FAR_NS if host is None else host.start_ns(now_ns) - now_ns)
        entry: Entry | None = head
        while entry is not None:
            stage = entry.request.pipeline.stages[entry.stage]
            deadline_ns = entry.stage_deadline_ns if stage.rest is None else entry.request.deadline_ns
            remaining_ns = deadline_ns - now_ns - self._hand_off_ns
            for option in stage.ranked(self._planner, remaining_ns, queue.rows, waits_ns):
                # While much waits the rate counts for more than one entry's deadline: see the policy `deadline`.
                if option.rows >= choice.rows or not full:
                    host = pools[option.pool].open(now_ns)
                    assert host is not None, "only what is open is ranked"
                    return self._local(entry, host), option.rows, entry.stage_deadline_ns if entry is not head else 0
            if entry is not head or not self._elsewhere(entry, model, now_ns):
                break
            begin_ns = partition.start_ns(now_ns) + self._hand_off_ns
            entry = queue.first_not_before(begin_ns + model.estimates[partition.kind].service_ns(1))
            if entry is head:  # the plan gives what follows more time than it takes by itself
                break
        if full or entry is head:
            return self._local(head, partition), choice.rows, 0
        return None

    def _elsewhere(self, entry: Entry, model: ModelState, now_ns: int) -> bool:
        """Whether an entry would be in time on a partition that is not open yet."""
        return any(
            pool.open(now_ns) is None
            and pool.ready_count
            and pool.start_ns(now_ns) + self._hand_off_ns + model.estimates[pool.kind].service_ns(entry.rows)
            <= entry.stage_deadline_ns
            for pool in model.pools
        )

    @staticmethod
    def _local(entry: Entry, host: PartitionState) -> PartitionState:
        """The partition that ran the stage before, if it is as free as its equal `host`."""
        near = entry.request.ran_on
        if near is not None and near.pool is host.pool and near.ready and not near.batches:
            return near
        return host
