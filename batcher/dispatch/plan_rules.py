"""Batches of stages for which a plan has a rule: what is run, where, and when, as the planner wants it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sluice.batcher.dispatch.choose_partition import PartitionChooser
from sluice.batcher.fleet.partition_group import first_available, planned_kind
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.interface.plan_data import FixedOption, GroupSearch
from sluice.batcher.places.locality import Locality
from sluice.batcher.places.ruled_groups import ruled_groups
from sluice.batcher.queues.queue import NO_WAITERS, Queue
from sluice.batcher.state import RESTART_NS, Entry, ModelState, PartitionState, StageState

# Module constants, because looking up a member of an enum is slow (see `sluice.batcher.scheduler.scheduler`).
FULL, DELAY, IDLE = ReleaseReason.FULL, ReleaseReason.DELAY, ReleaseReason.IDLE


class RuledBatch(NamedTuple):
    """A batch of up to `rows` rows, to be closed now by a `rule`, such as "infless: fixed"."""

    partition: PartitionState
    rows: int
    reason: ReleaseReason
    rule: str


class Hold(NamedTuple):
    """Ask again at `until_ns`, once the queue has `wanted_rows` rows, or (`for_idle`) once a partition is idle."""

    until_ns: int
    wanted_rows: int = NO_WAITERS
    for_idle: bool = True


class PlanRules:
    """Follows the rules of plans; `fallbacks` counts, by pipeline, the batches that could not follow theirs.

    `fallback` stands for the rule of such a batch.
    """

    __slots__ = ("_by_search", "_chooser", "_fixed", "_hand_off_ns", "_locality", "fallback", "fallbacks")

    def __init__(self, chooser: PartitionChooser, locality: Locality, hand_off_ns: int, planner: str) -> None:
        self._fixed, self._by_search, self.fallback = f"{planner}: fixed", f"{planner}: search", f"{planner}: fallback"
        self._chooser = chooser
        self._locality = locality
        self._hand_off_ns = hand_off_ns
        self.fallbacks: Counter[str] = Counter()

    def choose(
        self, queue: Queue, head: Entry, stage: StageState, model: ModelState, host: PartitionState, now_ns: int
    ) -> RuledBatch | Hold | None:
        """A batch of a queue for `host`, which can take one, or for a better partition.

        None, which is counted, where the rule cannot be followed: then the batch is one as without a plan.
        """
        rule = stage.rule
        if isinstance(rule, FixedOption):
            found = self._keep(rule, queue, head, stage, model, host, now_ns)
        else:
            assert rule is not None, "a stage without a rule is not asked for"
            found = self._search(rule, queue, head, stage, model, host, now_ns)
        if found is None:
            self.fallbacks[head.request.pipeline.config.name] += 1
        return found

    def _keep(
        self,
        rule: FixedOption,
        queue: Queue,
        head: Entry,
        stage: StageState,
        model: ModelState,
        host: PartitionState,
        now_ns: int,
    ) -> RuledBatch | Hold | None:
        """A batch of the size and on the kind that the plan has fixed, once it is full or has waited."""
        group = host.group
        assert group is not None, "a partition that takes a batch has a group"
        if planned_kind(group) != rule.kind:
            return None if group in ruled_groups(stage) else Hold(now_ns + RESTART_NS, for_idle=False)
        rows = min(rule.rows, model.estimates[group.kind].max_rows)
        until_ns = head.enqueued_ns + rule.wait_ns
        if queue.rows < rows and now_ns < until_ns:
            return Hold(until_ns, rows, for_idle=False)
        reason = FULL if queue.rows >= rows else DELAY
        return RuledBatch(self._chooser.local(head, host, now_ns), rows, reason, self._fixed)

    def _search(
        self,
        rule: GroupSearch,
        queue: Queue,
        head: Entry,
        stage: StageState,
        model: ModelState,
        host: PartitionState,
        now_ns: int,
    ) -> RuledBatch | Hold | None:
        """The first of the cheapest options whose partitions can take a batch (ESG_Dispatch, HPDC 2024).

        While none can, the rows wait for one, as long as they can still be in time.
        """
        remaining_ns = int((head.request.deadline_ns - now_ns) * rule.share) - self._hand_off_ns
        groups = model.groups
        ranked = self._chooser.ranked(stage, model, remaining_ns, queue.rows, [0] * len(groups), 1)
        for option in ranked:
            group = groups[option.group]
            free = host if group is host.group else first_available(group, now_ns)
            if free is not None:
                return RuledBatch(self._near(head, model, free, now_ns), option.rows, IDLE, self._by_search)
        latest_ns = head.stage_deadline_ns - self._hand_off_ns - model.quickest_ns
        return Hold(latest_ns) if ranked and latest_ns > now_ns else None

    def _near(self, head: Entry, model: ModelState, free: PartitionState, now_ns: int) -> PartitionState:
        """An equal of a free partition: near the stage before or, for a first stage, near the home of the model."""
        if head.follows:
            return self._chooser.local(head, free, now_ns)
        return free if free.node is None else self._locality.nearest_free(model, free, now_ns)
