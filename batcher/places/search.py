"""The search for the places of one request: one in a planned batch for each of its stages, or none at all."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from sluice.batcher.fleet.member_table import Found, Times, soonest
from sluice.batcher.fleet.partition_group import are_of_kinds, planned_until_ns
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.places import planned_batches
from sluice.batcher.places.locality import Locality, kept_bytes, near_nodes
from sluice.batcher.places.planned_batches import (
    Before,
    batch_ns,
    end_of_grown_ns,
    end_of_new_ns,
    length_ns,
    length_on_ns,
    return_ns,
    tail_ns,
)
from sluice.batcher.places.shares import FairShares, cost_ns
from sluice.batcher.places.timeline import end_of_joined_ns, moved_ends, plan, rows_ready_ns, spot_of_new, update
from sluice.batcher.queues.progress import request_batch_key
from sluice.batcher.queues.queue_table import bound_key
from sluice.batcher.state import (
    ComingModel,
    ModelState,
    PartitionGroup,
    PartitionState,
    PipelineState,
    Place,
    PlannedBatch,
    QueueKey,
    StageState,
)
from sluice.models.units import INFINITE_NS, NS_PER_S

GATHERED = 3
"""Where only some rows go on to a stage, its batch gathers those of several batches before it.

It is put behind other batches by the time that a request has beyond this many full batches of the stage.
"""

OVERLOADED = 1.3
"""Above this, a small batch takes time that others need."""

Groups = Sequence[PartitionGroup]
"""The groups on which a stage may have its place."""
ComingModels = Mapping[ModelState, ComingModel]
"""The models that no partition holds yet."""


class TooLateError(Exception):
    """A request would be complete at `done_ns` at the soonest; or it `stays` with others, with which it is late."""

    def __init__(self, done_ns: int, *, stays: bool = False) -> None:
        super().__init__()
        self.done_ns = done_ns
        self.stays = stays


class Opened(NamedTuple):
    """A batch that a request opens for a stage: its start, and the average time between two rows of its queue."""

    stage: StageState
    batch: PlannedBatch
    start_ns: int
    row_gap_ns: float


class _Step(NamedTuple):
    """A place that was just taken, and its batch before."""

    batch: PlannedBatch
    rows: float
    before: Before


class _Spot(NamedTuple):
    """A new batch: its partition, its order there, its end, and how long it takes.

    It `merges` if its rows will run with those of the next batch of its queue, since entries run in order. What it
    answers is there at `done_ns`, which is later than its end if it runs on another node.
    """

    partition: PartitionState
    order_ns: int
    end_ns: int
    took_ns: int
    merges: bool
    done_ns: int


class _New:
    """A new batch of a stage that is ready at `ready_ns`, for any partition of a group.

    It wants the order `wanted_ns`, and takes `alone_ns` by itself. If it may merge with one behind it, `full_ns` is the
    time of a full batch, else 0. Its stage has to be back by `deadline_ns`, `back_ns` after its end; `level` is that of
    its requests.
    """

    __slots__ = (
        "_alone_ns",
        "_back_ns",
        "_deadline_ns",
        "_full_ns",
        "_full_rows",
        "_is_linked",
        "_key",
        "_level",
        "_model",
        "_now_ns",
        "_ready_ns",
        "_rows",
        "_wanted_ns",
    )

    def __init__(
        self,
        model: ModelState,
        key: QueueKey,
        rows: float,
        ready_ns: int,
        deadline_ns: int,
        back_ns: int,
        wanted_ns: int,
        level: int,
        alone_ns: int,
        full_rows: int,
        full_ns: int,
        now_ns: int,
        *,
        is_linked: bool,
    ) -> None:
        self._model = model
        self._key = key
        self._rows = rows
        self._ready_ns = ready_ns
        self._deadline_ns = deadline_ns
        self._back_ns = back_ns
        self._wanted_ns = wanted_ns
        self._level = level
        self._alone_ns = alone_ns
        self._full_rows = full_rows
        self._full_ns = full_ns
        self._now_ns = now_ns
        self._is_linked = is_linked

    def times_on(self, partition: PartitionState) -> Times:
        """Its end on a partition, its order there, how long it takes, and whether it merges."""
        now_ns, ready_ns, alone_ns = self._now_ns, self._ready_ns, self._alone_ns
        planned = partition.planned
        overtaken = self._model if self._level else None
        order_ns, merges = self._wanted_ns, False
        if planned:
            if overtaken is not None or not self._model.by_deadline:
                order_ns = self._order_on(partition)
            if self._is_linked or partition.linked:
                may_overtake = overtaken is None and self._model.by_deadline
                spot = spot_of_new(
                    partition, order_ns, ready_ns, alone_ns, now_ns, overtaken, may_overtake=may_overtake
                )
                return *spot, alone_ns, False
            if self._full_ns:
                order_ns, merges = _behind_earlier(partition, self._key, order_ns, self._deadline_ns)
        took_ns = added_ns = alone_ns
        if merges:
            took_ns = self._full_ns
            added_ns = int(self._rows * took_ns / self._full_rows)
        end_ns = end_of_new_ns(partition, order_ns, added_ns, now_ns, overtaken)
        if end_ns is None:
            order_ns, merges, took_ns = planned[-1].order_ns, False, alone_ns
            end_ns = planned_until_ns(partition, now_ns) + took_ns
        else:
            end_ns += took_ns - added_ns
        end_ns = max(end_ns, ready_ns + took_ns)
        if merges and end_ns > self._deadline_ns - partition.hand_off_ns - self._back_ns:
            # It would be late with the rows behind it, so it runs without them.
            alone_end_ns = end_of_new_ns(partition, order_ns, alone_ns, now_ns, overtaken)
            if alone_end_ns is not None:
                merges, took_ns, end_ns = False, alone_ns, max(alone_end_ns, ready_ns + alone_ns)
        return end_ns, order_ns, took_ns, merges

    def _order_on(self, partition: PartitionState) -> int:
        """The order on a partition of a new batch of that order, as the policy of its model has it."""
        model, level, order_ns = self._model, self._level, self._wanted_ns
        if not model.by_deadline:
            # First come, first served: what waits for the model goes first, whatever its deadline is.
            order_ns = max([order_ns, *(each.order_ns for each in _up_to_level(partition, model, level))])
        if level:
            # Less urgent levels of its queue wait for it, whatever their deadlines are.
            order_ns = min([order_ns, *(each.order_ns - 1 for each in _behind_level(partition, model, level))])
        return order_ns


class Search:
    """Takes places for the stages of a request, in topological order; `undo` gives all of them back.

    `open_batches` has the batch of each queue that can be joined, `row_gap_ns` tells the average time between the rows
    of a queue. Stages of `coming` models have their places on the partitions that load these, after the loads.
    With `by_cost`, each stage has its place where it costs least together with what its plan says the rest costs in the
    time that is then left, as at dispatch; else where it ends first.
    `done_ns` is the planned end of the request; `waits_ns` is how long that is from now, 0 if it can start at once.
    """

    __slots__ = (
        "_by_cost",
        "_coming",
        "_ends_ns",
        "_links",
        "_locality",
        "_now_ns",
        "_open_batches",
        "_pipeline",
        "_row_gap_ns",
        "_shares",
        "_steps",
        "done_ns",
        "event",
        "is_linked",
        "opened",
        "places",
        "waits_ns",
    )

    def __init__(
        self,
        event: RequestArrived,
        pipeline: PipelineState,
        open_batches: dict[QueueKey, PlannedBatch],
        row_gap_ns: Callable[[QueueKey, StageState, int], float],
        shares: FairShares,
        locality: Locality,
        now_ns: int,
        coming: ComingModels,
        *,
        by_cost: bool = False,
    ) -> None:
        self.event = event
        self._by_cost = by_cost
        self._pipeline = pipeline
        self._open_batches = open_batches
        self._row_gap_ns = row_gap_ns
        self._shares = shares
        self._locality = locality
        self._now_ns = now_ns
        self._coming = coming
        self._steps: list[_Step] = []
        self._ends_ns: list[int] = []
        self.is_linked = bool(pipeline.feeds) and not any(stage.rule is not None for stage in pipeline.stages)
        self._links: list[tuple[PlannedBatch, PlannedBatch]] = []
        self.places: list[Place | None] = []
        self.opened: list[Opened] = []
        self.done_ns = 0
        self.waits_ns = 0

    @property
    def last(self) -> PlannedBatch:
        """The batch of the last stage."""
        return self._steps[-1].batch

    def new_batches(self, group: PartitionGroup) -> list[tuple[PlannedBatch, float]]:
        """The batches that were opened on a group, and the share of the rows that they are for."""
        reach = self._pipeline.reach
        return [(each.batch, reach[each.stage.index]) for each in self.opened if each.batch.partition.group is group]

    def run(self, allowed: Sequence[Groups | None], models: Sequence[ModelState | None] = (), *, opens: bool) -> None:
        """Take a place for each stage, on one of its `allowed` groups; raises TooLateError if there is none in time.

        The `models` run the stages (empty: those that the stages have). With `opens`, the first stages open batches of
        their own.
        """
        joined = False
        for stage in self._pipeline.stages:
            ready_ns = 0
            for source in stage.waits_for:
                if self._ends_ns[source] > ready_ns:
                    ready_ns = self._ends_ns[source]
            model, groups = models[stage.index] if models else stage.model, allowed[stage.index]
            share = self._pipeline.reach[stage.index]
            if model is None or groups is None or share <= 0:
                self._ends_ns.append(ready_ns)
                self.places.append(None)
                continue
            rows = self.event.rows if share == 1 else self.event.rows * share
            key = queue_key(self.event, stage, model)
            coming = self._coming.get(model) if self._coming else None
            if coming is not None:
                ready_ns = max(ready_ns, coming.ready_ns + self._held_up_ns(stage, coming.partition, key))
            if stage.waits_for:
                follows = self._follows(stage, model, groups)
                alone = follows and self._is_opened(stage)
            else:
                follows, alone = False, opens
            end_ns = (
                0 if alone or (opens and self.is_linked) else self._join_open(stage, model, groups, key, rows, ready_ns)
            )
            if end_ns:
                joined = True
            else:
                row_gap_ns = self._row_gap_ns(key, stage, self._now_ns)
                # Where partitions are busy, a request that joined others has to stay with them.
                if joined and ((follows and not alone) or self._stays(key, model, rows)):
                    raise TooLateError(self._now_ns + self._pipeline.critical_path_ns, stays=True)
                only = None if coming is None else coming.partition
                end_ns = self._open_new(stage, model, groups, key, rows, ready_ns, row_gap_ns, only)
            step = self._steps[-1]
            if end_ns >= self.done_ns:
                self.done_ns = end_ns
                starts_now = end_ns - step.batch.length_ns <= self._now_ns
                self.waits_ns = 0 if starts_now else end_ns - self._now_ns
            self.places.append((step.batch, rows))
            self._link(stage, step.batch, end_ns, 0 if coming is None else ready_ns)
            self._ends_ns.append(end_ns + return_ns(step.batch.partition, model, step.batch.room))
        if not self._pipeline.single:
            self._chain()
        self._keep_in_step()

    def _link(self, stage: StageState, batch: PlannedBatch, end_ns: int, loaded_ns: int) -> None:
        """Let a batch wait for those of the stages before, and until its model is there, if it is planned strictly."""
        if not self.is_linked:
            return
        planned_batches.feed(batch, loaded_ns)
        for source in self._pipeline.fed_by[stage.index]:
            place = self.places[source]
            if place is not None:
                planned_batches.link(place[0], batch)
                self._links.append((place[0], batch))
        if not batch.end_ns:
            plan({batch: end_ns})

    def _keep_in_step(self) -> None:
        """Plan when batches end, with those that wait for them; raises TooLateError if one of them is late then."""
        hosts = [step.batch.partition for step in self._steps if step.batch.partition.linked]
        if hosts:
            ends_ns = moved_ends(hosts, self._now_ns)
            if ends_ns is None:
                raise TooLateError(self._now_ns + self._pipeline.critical_path_ns)
            plan(ends_ns)

    def _chain(self) -> None:
        """Let no stage end after its later stages have to begin, where these have places on slower partitions.

        The deadlines of stages go by the quickest partitions of later ones.
        """
        begins_ns = [INFINITE_NS] * len(self.places)
        for stage in reversed(self._pipeline.stages):
            index, place = stage.index, self.places[stage.index]
            due_ns = min([begins_ns[later] for later in stage.dependents], default=INFINITE_NS)
            if place is None:
                begins_ns[index] = due_ns
                continue
            batch = place[0]
            if due_ns < INFINITE_NS:
                end_ns = self._ends_ns[index] - return_ns(batch.partition, batch.model, batch.room)
                planned_batches.tighten(batch, max(due_ns - batch.partition.hand_off_ns, end_ns))
            if due_ns < INFINITE_NS or _has_quicker(batch):
                begins_ns[index] = batch.latest_ns - batch.length_ns

    def _follows(self, stage: StageState, model: ModelState, groups: Groups) -> bool:
        """True if the batches of a stage are to have the requests of those before it, as one partition runs them all.

        Then they take the least time together: a batch that is split runs as two in each later stage. Where later
        batches can be larger, rows gather in these instead.
        """
        if len(model.pipelines) > 1 or not self._is_short(model, groups):
            return False
        full = model.full_rows(model.estimates[groups[0].kind])
        places = map(self.places.__getitem__, stage.waits_for)
        return all(
            place is not None and place[0].partition.group is groups[0] and place[0].full_rows >= full
            for place in places
        )

    def _is_short(self, model: ModelState, groups: Groups) -> bool:
        """True if one partition runs a model, and a request has too little time to gather with later ones there."""
        if len(groups) > 1 or len(groups[0].partitions) > 1:
            return False
        full_ns = model.full_rows(model.estimates[groups[0].kind]) * cost_ns(self._pipeline, groups[0])
        return self.event.deadline_ns - self._now_ns < GATHERED * full_ns

    def _is_opened(self, stage: StageState) -> bool:
        """True if the request opened the batches that a stage waits for."""
        return any(
            place is not None and place[0].members == 1 for place in map(self.places.__getitem__, stage.waits_for)
        )

    def _stays(self, key: QueueKey, model: ModelState, rows: float) -> bool:
        """True if a batch of its own would be small while the open one has room, and others need the time."""
        batch = self._open_batches.get(key)
        if batch is None or batch.rows + rows > batch.full_rows:
            return False
        return any(self._shares.asked(group) > OVERLOADED for group in model.groups)

    def undo(self) -> None:
        """Give all places back."""
        for source, later in self._links:
            planned_batches.link(source, later, -1)
        for step in reversed(self._steps):
            planned_batches.undo(step.batch, step.rows, step.before)
        update([step.batch.partition for step in self._steps if step.batch.partition.linked], self._now_ns)

    def _join_open(
        self, stage: StageState, model: ModelState, groups: Groups, key: QueueKey, rows: float, ready_ns: int
    ) -> int:
        """Join the open batch of a queue; returns its end, 0 if it cannot be joined.

        Raises TooLateError where the policy of the queue would add the rows to that batch whatever is planned.
        """
        if self.event.max_cost is None:
            batch = self._open_batches.get(key)
        else:  # it waits in another queue than requests that may run anywhere
            bound = (self._open_batches.get(bound_key(key, group.kind, group.price)) for group in groups)
            batch = next((each for each in bound if each is not None), None)
        if batch is None or batch.partition.group not in groups or batch.level != self._level(model):
            return 0
        if self._is_before(batch, stage, ready_ns):
            return 0
        estimate = model.estimates[batch.partition.kind]
        grown = batch.rows + rows
        if grown > model.full_rows(estimate):
            return 0
        share = self._pipeline.reach[stage.index]
        kept = max(grown, batch.room)
        took_ns = batch_ns(batch, kept) + batch.gap_ns
        added_ns = took_ns - batch.length_ns
        is_linked = batch.partition.linked > 0
        end_ns = (
            end_of_joined_ns(batch, added_ns, ready_ns, self._now_ns)
            if is_linked
            else end_of_grown_ns(batch, added_ns, self._now_ns)
        )
        if end_ns is not None:
            if added_ns > model.quickest_ns:
                gap_ns = self._row_gap_ns(key, stage, self._now_ns)
                come = max(end_ns - took_ns - self._now_ns, 0) / gap_ns if gap_ns else 0.0
                if self._shares.is_cheaper_alone(batch, rows, added_ns, come):
                    return 0
            planned_batches.measure_depth(batch)
            start_ns = end_ns - took_ns
            if ready_ns > start_ns >= batch.ready_ns:
                return 0
            end_ns = max(end_ns, ready_ns + took_ns)
            if batch.merges:
                end_ns += length_on_ns(batch.partition, model, batch.full_rows) - took_ns
            limit_ns = self._limit_ns(stage, batch.partition, end_ns)
            variance = batch.variance + rows * (1 - share)
            most = max(batch.most + rows / share, kept)
            kept_ns = tail_ns(estimate, kept, variance, most, batch.caution, batch.depth)
            kept_ns += return_ns(batch.partition, model, kept)
            others_ns = limit_ns if self._is_late(batch) else batch.limit_ns
            if end_ns <= min(others_ns, limit_ns) - kept_ns - self._left_ns(batch):
                self._take(batch, stage, rows, limit_ns, ready_ns, (took_ns, kept_ns))
                return end_ns
        if not model.by_deadline:
            end_ns = planned_until_ns(batch.partition, self._now_ns) + took_ns
            raise TooLateError(end_ns + batch.partition.hand_off_ns + stage.remaining_path_ns)
        return 0

    def _is_before(self, batch: PlannedBatch, stage: StageState, ready_ns: int) -> bool:
        """True if a batch cannot run with a stage that is ready at `ready_ns`.

        It has, or comes before, what the stage waits for. Or, on a partition with linked batches, its rows are there at
        its turn, and would have to wait for the stage.
        """
        before = [place[0] for source in stage.waits_for if (place := self.places[source]) is not None]
        if any(each is batch for each in before):
            return True
        partition = batch.partition
        if not partition.linked:
            return False
        order = (batch.order_ns, batch.serial)
        if any(each.partition is partition and (each.order_ns, each.serial) > order for each in before):
            return True
        return ready_ns > batch.begin_ns > rows_ready_ns(batch)

    def _open_new(
        self,
        stage: StageState,
        model: ModelState,
        groups: Groups,
        key: QueueKey,
        rows: float,
        ready_ns: int,
        row_gap_ns: float,
        only: PartitionState | None,
    ) -> int:
        """Open a batch where it ends first, or on the `only` partition; returns its end.

        Raises TooLateError if that is late.
        """
        deadline_ns = self.event.deadline_ns - stage.remaining_path_ns
        host, order_ns, end_ns, took_ns, merges, _ = self._soonest(stage, model, groups, key, rows, ready_ns, only)
        full_rows = model.full_rows(model.estimates[host.kind])
        gap_ns = 0
        before = [place[0] for source in stage.waits_for if (place := self.places[source]) is not None]
        if any(batch.partition is host for batch in before):
            gap_ns = host.hand_off_ns + host.way_ns(model, rows)
            end_ns += gap_ns
            if host.node is not None and end_ns - gap_ns == ready_ns + took_ns:
                # The way back of the stage before is in `ready_ns` already.
                back_ns = [return_ns(host, batch.model, batch.room) for batch in before if batch.partition is host]
                end_ns -= min(gap_ns, *back_ns)
        if self.event.max_cost is not None:
            key = bound_key(key, host.kind, host.price)
        level = self._level(model)
        depth = math.sqrt(1 + len(host.planned))
        batch = PlannedBatch(
            host, model, key, order_ns, self._pipeline.caution, depth, gap_ns, full_rows, level, merges
        )
        planned_batches.insert(batch)
        starts_now = end_ns - took_ns <= self._now_ns
        limit_ns = deadline_ns - host.hand_off_ns if starts_now else self._limit_ns(stage, host, end_ns)
        self._take(batch, stage, rows, limit_ns, ready_ns)
        late_ns = end_ns + self._left_ns(batch) - batch.latest_ns
        if late_ns > 0:
            raise TooLateError(self.event.deadline_ns + late_ns)
        self.opened.append(Opened(stage, batch, end_ns - batch.length_ns, row_gap_ns))
        return end_ns

    def _left_ns(self, batch: PlannedBatch) -> int:
        return self._shares.left_ns(self.event, self._pipeline, batch.partition.group, self._now_ns)

    def _limit_ns(self, stage: StageState, host: PartitionState, end_ns: int) -> int:
        """The latest end of a stage that is planned to end at `end_ns`, without what is kept for long batches."""
        kept_ns = host.hand_off_ns + int(self._pipeline.drift * (end_ns - self._now_ns))
        return self.event.deadline_ns - stage.remaining_path_ns - kept_ns

    def _take(
        self,
        batch: PlannedBatch,
        stage: StageState,
        rows: float,
        limit_ns: int,
        ready_ns: int,
        known: tuple[int, int] | None = None,
    ) -> None:
        times = (batch.from_ns, batch.limit_ns, batch.ready_ns, batch.latest_ns)
        self._steps.append(_Step(batch, rows, Before(batch.room, batch.variance, batch.most, *times)))
        if self._is_late(batch):
            planned_batches.forget_limit(batch)
        share = self._pipeline.reach[stage.index]
        from_ns = self.event.deadline_ns - stage.remaining_path_ns
        planned_batches.join(batch, rows, share, from_ns, limit_ns, ready_ns, known)

    def _is_late(self, batch: PlannedBatch) -> bool:
        """True if a batch is late in any case: its members are in no other's way, and those that join set its limit."""
        return batch.latest_ns <= self._now_ns

    def _held_up_ns(self, stage: StageState, partition: PartitionState, key: QueueKey) -> int:
        """By how much later than its model a stage may start on a partition that loads that.

        Meanwhile the partition runs what is there: a long batch may have just begun, although its deadline is later.
        Batches with earlier deadlines that had to wait as well are then still to run.
        """
        now_ns, order_ns = self._now_ns, self.event.deadline_ns - stage.remaining_path_ns
        longest_ns = max([batch.expected_ns for batch in partition.batches], default=0)
        waiting_ns = 0
        for batch in partition.planned:
            if batch.queue_key == key:
                continue
            if batch.ready_ns > now_ns and batch.order_ns <= order_ns:
                waiting_ns += batch.length_ns
            elif batch.length_ns > longest_ns:
                longest_ns = batch.length_ns
        return longest_ns + waiting_ns

    def _soonest(
        self,
        stage: StageState,
        model: ModelState,
        groups: Groups,
        key: QueueKey,
        rows: float,
        ready_ns: int,
        only: PartitionState | None,
    ) -> _Spot:
        """Where a new batch ends first, or (`by_cost`) costs least."""
        now_ns, level = self._now_ns, self._level(model)
        deadline_ns = self.event.deadline_ns - stage.remaining_path_ns
        gathers = self._is_escalated(stage) and not self._is_short(model, groups)
        best: _Spot | None = None
        least = math.inf
        rest = stage.cost_to_go if self._by_cost and only is None and are_of_kinds(groups) else None
        for group in groups:
            estimate = model.estimates[group.kind]
            alone_ns, full = length_on_ns(group, model, rows), model.full_rows(estimate)
            wanted_ns = self._order_ns(stage, gathers=gathers)
            if gathers:
                wanted_ns += max(self.event.deadline_ns - now_ns - GATHERED * length_ns(estimate, full), 0)
            may_merge = model.by_deadline and not stage.waits_for and rows < full and not self.is_linked
            full_ns = length_on_ns(group, model, full) if may_merge else 0
            back_ns = _back_ns(group, model, rows, alone_ns)
            new = _New(
                model,
                key,
                rows,
                ready_ns,
                deadline_ns,
                back_ns,
                wanted_ns,
                level,
                alone_ns,
                full,
                full_ns,
                now_ns,
                is_linked=self.is_linked,
            )
            least_ns = min(alone_ns, full_ns) if may_merge else alone_ns
            if only is not None:
                found: Found | None = (only, new.times_on(only))
            else:
                found = soonest(
                    group,
                    new.times_on,
                    INFINITE_NS if best is None or rest is not None else best.done_ns - back_ns,
                    -1 if level or self.is_linked else wanted_ns,
                    least_ns,
                    ready_ns + least_ns,
                    now_ns,
                )
            if found is not None:
                if group.link.distance and only is None:
                    found = self._nearest(stage, model, found, new.times_on, rows)
                host, (end_ns, order_ns, took_ns, merges) = found
                spot = _Spot(host, order_ns, end_ns, took_ns, merges, end_ns + back_ns)
                if rest is not None:
                    cost = self._cost(spot, group, rows, rest)
                    if best is not None and (cost, spot.done_ns) >= (least, best.done_ns):
                        continue
                    least = cost
                best = spot
        assert best is not None, "a model without partitions is refused before"
        return best

    def _cost(self, spot: _Spot, group: PartitionGroup, rows: float, rest: CostToGo) -> float:
        """The cost of a row of a new batch with the rest of the pipeline; infinite if there is no time for that."""
        left_ns = self.event.deadline_ns - spot.done_ns - spot.partition.hand_off_ns
        step = bisect_right(rest.within_ns, left_ns)
        return group.price * spot.took_ns / NS_PER_S / rows + rest.cost[step - 1] if step else math.inf

    def _nearest(
        self,
        stage: StageState,
        model: ModelState,
        found: Found,
        times_on: Callable[[PartitionState], Times],
        rows: float,
    ) -> Found:
        """An equal of the partition on which a stage ends first, on a node that is preferred and as soon.

        What a node has already shortens the way there. O(partitions of the nodes that are looked at).
        """
        host, (end_ns, _, took_ns, _) = found
        if not stage.waits_for:
            if end_ns - took_ns > self._now_ns:
                return found
            nearest = self._locality.nearest_free(model, host, self._now_ns)
            return found if nearest is host else (nearest, times_on(nearest))
        near = near_nodes(stage, self.places)
        if host.node in near:
            return found
        for node in near:
            equals = [each for each in node.partitions.values() if each.group is host.group and each.ready]
            for partition in equals:
                times = times_on(partition)
                saved_ns = int(kept_bytes(stage, self.places, partition) * rows * partition.ns_per_byte)
                if times[0] - saved_ns <= end_ns:
                    end_ns, found = times[0] - saved_ns, (partition, times)
        return found

    def _order_ns(self, stage: StageState, *, gathers: bool) -> int:
        """The order of a new batch: by the deadline of its stage, or right behind the batches that it waits for.

        Unless its rows gather, the stages of a batch run one after the other, so that batches stay together.
        """
        places = [place for source in stage.waits_for if (place := self.places[source]) is not None]
        if places and not gathers:
            return max(batch.order_ns for batch, _ in places) + 1
        return self.event.deadline_ns - stage.remaining_path_ns

    def _is_escalated(self, stage: StageState) -> bool:
        """True if only some of the rows of the stages before go on to a stage."""
        reach = self._pipeline.reach
        return any(reach[source] > reach[stage.index] for source in stage.waits_for)

    def _level(self, model: ModelState) -> int:
        return model.config.policy.level_of(self.event.priority)


def _back_ns(group: PartitionGroup, model: ModelState, rows: float, alone_ns: int) -> int:
    """By how much later a batch by itself is complete than it occupies a partition of a group (`alone_ns`)."""
    if not group.link.distance:
        return 0
    return length_ns(model.estimates[group.kind], rows) + group.way_ns(model, rows) - alone_ns


def queue_key(event: RequestArrived, stage: StageState, model: ModelState) -> QueueKey:
    """The queue of a stage; one of its own if the batch key is not known yet."""
    if not stage.is_keyed:
        return (model.config.key, "")
    if stage.config.source_keyed:
        return (model.config.key, f"#{event.request}")
    return (model.config.key, request_batch_key(event, stage.config))


_order_of = attrgetter("order_ns")


def _behind_earlier(partition: PartitionState, key: QueueKey, order_ns: int, deadline_ns: int) -> tuple[int, bool]:
    """The order of a new batch behind those of its queue with an earlier head, and whether others are behind it."""
    has_later = False
    begin = bisect_right(partition.planned, order_ns, key=_order_of)
    for batch in islice(partition.planned, begin, None):
        if batch.queue_key == key and batch.order_ns > order_ns:
            if batch.from_ns <= deadline_ns:
                order_ns = batch.order_ns
            else:
                has_later = True
    return order_ns, has_later


def _up_to_level(partition: PartitionState, model: ModelState, level: int) -> list[PlannedBatch]:
    return [batch for batch in partition.planned if batch.model is model and batch.level <= level]


def _behind_level(partition: PartitionState, model: ModelState, level: int) -> list[PlannedBatch]:
    return [batch for batch in partition.planned if batch.model is model and batch.level > level]


def _has_quicker(batch: PlannedBatch) -> bool:
    """True if partitions of another kind run such batches in less time."""
    estimates, here = batch.model.estimates, batch.partition.kind
    if len(estimates) == 1:
        return False
    own_ns = estimates[here].service_ns(1)
    return any(estimates[group.kind].service_ns(1) < own_ns for group in batch.model.groups if group.kind != here)
