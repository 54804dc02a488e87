"""Places: a request is admitted with a place in a planned batch for each of its stages, or refused.

An arrival joins the last batch of its queue that is not full, if all that is planned stays in time. Otherwise it opens
a batch where it ends first, unless a later arrival could open a larger one (`sluice.batcher.places.price`). What is
planned is what runs: a batch has at least the rows that were planned for it, and more only where that delays nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import ceil, sqrt
from typing import NamedTuple

import msgspec

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.member_table import first_free
from sluice.batcher.fleet.partition_group import are_of_kinds, planned_until_ns
from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.places import planned_batches, timeline
from sluice.batcher.places.costs import affordable_groups, cheapest_groups
from sluice.batcher.places.locality import Locality
from sluice.batcher.places.planned_batches import keep_room, run_together, slack_ns
from sluice.batcher.places.price import Opening, larger_later_ns, opening
from sluice.batcher.places.ruled_groups import ruled_groups
from sluice.batcher.places.search import ComingModels, Groups, Search, TooLateError, queue_key
from sluice.batcher.places.shares import FORGET_NS, FairShares, part_of_rows, present_gap_ns
from sluice.batcher.places.variants import Variants
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import (
    Entry,
    ModelState,
    PartitionGroup,
    PartitionState,
    PipelineState,
    Place,
    PlannedBatch,
    QueueKey,
    Request,
    StageState,
)
from sluice.models.units import NS_PER_MS

LATE_STEP = 0.02
"""A batch that is answered late raises the share of their time that places of its pipeline keep by this much."""
LEAST_LATE = 0.001
"""The share of late requests that margins are kept for where none is to be late."""
LATE_PART = 0.5
"""The feedback settles where this part of the late answers is used that the percentile of a pipeline allows."""
MOST_OWED = 50
"""The most late requests whose share of requests in time is waited for until less time is kept."""
AMPLE = 1.5
"""The most that is kept, as a multiple of what a late request would have needed."""
MOST_KEPT = 0.5
"""The largest share of a request's time that is kept."""
ALIKE = 0.9
"""A refusal holds for requests with at least this part of the time: more urgent ones may run before planned batches."""
HOLDS_NS = NS_PER_MS
"""The longest that a refusal holds for others: whether a batch is worth opening depends on the rows that come, too."""
GAP_WEIGHT = 0.02
"""Weight of one request in the smoothed time between two rows."""
FIRST_GAPS = 5
"""The first times between two rows count alike: one alone says little, and would weigh for long."""
KEY_WEIGHT = 0.1
"""The same for one batch key."""
ROOM = 0.65
"""Time is kept in contended partitions for this part of the rows that are expected to join a batch."""
ROUNDING = 1e-6
"""Sums of expected rows that are smaller than this are rounding errors."""
MOST_EXCHANGED = 256
"""The first entries of a queue among which those are found that wait for a batch."""
ONE_STAGE = ((False, False),)
STAGES = (*ONE_STAGE, (False, True))
STAGES_BY_COST = ((True, False), (True, True), *STAGES)
"""The searches for places, until one is in time: by cost, and with batches of its own for the first stages."""
DEMANDS = 1024
"""Queues whose demand is remembered: the most recently used ones."""


class Offer:
    """The places of a request by stage, its planned end, and how long that is from now (0 if it can start at once).

    `models` are the variants by stage that it has its places for; empty where they are those of the stages. If it
    `is_linked`, the batches of its places are linked as its stages are.
    """

    __slots__ = ("done_ns", "is_linked", "models", "places", "waits_ns")

    def __init__(
        self,
        places: list[Place | None],
        done_ns: int,
        waits_ns: int,
        models: Sequence[ModelState | None] = (),
        *,
        is_linked: bool = False,
    ) -> None:
        self.places = places
        self.done_ns = done_ns
        self.waits_ns = waits_ns
        self.models = models
        self.is_linked = is_linked


NO_PLACES = Offer([], 0, 0)
"""For a request that is admitted without places."""
NONE_COMING: ComingModels = {}
"""For a request all of whose models are there."""


class Refusal(NamedTuple):
    """Why a request has no place.

    It would be done at `done_ns` at the soonest; or (`wait_ns`) a batch is worth opening only after that time; or
    (`is_beyond_share`) its pipeline or client would have more than its share; or it costs `cost` at least.
    """

    done_ns: int
    wait_ns: int = 0
    is_beyond_share: bool = False
    cost: float | None = None


class KnownRefusal(NamedTuple):
    """A refusal for want of time, which holds for later requests as well until places become earlier (`changes`).

    They have at least as many `rows`, and `ALIKE` of the time or more (`time_ns`), but no more than that. From
    `until_ns` on one may have a place. `predictions` are those of the pipeline (`PipelineState.predicted_changes`).
    `client` is the one that would have had more than its share; None if it would not.
    """

    refusal: Refusal
    changes: int
    predictions: int
    rows: int
    time_ns: int
    until_ns: int
    priority: int
    batch_key: str
    client: str | None

    def holds(self, event: RequestArrived, client: str | None, changes: int, predictions: int, now_ns: int) -> bool:
        """True if it holds for a request that arrives now."""
        if now_ns >= self.until_ns or changes != self.changes or predictions != self.predictions:
            return False
        time_ns = event.deadline_ns - now_ns
        if event.rows < self.rows or not ALIKE * self.time_ns <= max(time_ns, 0) or time_ns > self.time_ns:
            return False
        return event.priority == self.priority and event.batch_key == self.batch_key and client == self.client


class Postponed(NamedTuple):
    """A group on which it is worth opening batches only after a time (ns)."""

    group: PartitionGroup
    wait_ns: int


class Places:
    """Finds places for requests, and gives them back when their stages start or will not run.

    `locality` tells which of equal partitions on nodes is preferred.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.locality = Locality(fleet.nodes)
        self.variants = Variants(fleet.models, fleet.partitions)
        self._hand_off_ns = fleet.hand_off_ns
        self._open: dict[QueueKey, PlannedBatch] = {}
        self._gaps: dict[QueueKey, tuple[int, float]] = {}
        self._shares = FairShares()
        self._changes = 0  # how often places may have become earlier
        self._refused: dict[PipelineState, KnownRefusal] = {}
        self._openings: dict[tuple[StageState, tuple[int, ...], PartitionGroup], tuple[int, Opening]] = {}
        self._linked = 0  # requests with places in linked batches
        self._removals = 0  # of groups, when `_openings` was last cleared of those
        self._unable: dict[int, PartitionState] = {}  # those that may have batches which they cannot run, by number

    # -- requests

    def count(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> None:
        """Count a request as demand of its pipeline and client; once, whether it is admitted or not."""
        last_ns = pipeline.last_row_ns
        silent_ns = now_ns - last_ns
        if silent_ns >= FORGET_NS or not last_ns:
            self._shares.add(pipeline)
        if silent_ns >= FORGET_NS:
            pipeline.row_gap_ns = 0.0  # what was before says nothing
            pipeline.gaps = 0
        elif last_ns:
            weight = GAP_WEIGHT
            if pipeline.gaps < FIRST_GAPS:
                pipeline.gaps += 1
                weight = 1 / pipeline.gaps
            gap_ns = pipeline.row_gap_ns
            pipeline.row_gap_ns = gap_ns + weight * (silent_ns / event.rows - gap_ns)
        pipeline.last_row_ns = now_ns
        if event.client or pipeline.clients:
            self._shares.count(event, pipeline, now_ns)
        if pipeline.is_keyed:
            for stage in pipeline.stages:
                model = stage.model
                if stage.is_keyed and not stage.config.source_keyed and model is not None and not model.mixes_keys:
                    self._count_key(queue_key(event, stage, model), event.rows, now_ns)

    def find(self, event: RequestArrived, pipeline: PipelineState, now_ns: int, kept_ns: int) -> Offer | Refusal:
        """Places for all stages of a request, or the reason why there are none. O(stages * all that is planned).

        They are planned to end `kept_ns` sooner than its deadline demands.
        """
        shares = self._shares
        share_ns = now_ns
        if shares.bound or now_ns >= shares.renew_ns or pipeline.clients:
            if now_ns >= shares.renew_ns:
                self._changes += 1
            share_ns = shares.start_ns(event, pipeline, now_ns)
        is_plain = event.max_cost is None and not event.min_accuracy and not pipeline.feeds
        if pipeline.single and share_ns == now_ns and is_plain:
            quick = self._join_last(event, pipeline, now_ns, kept_ns)
            if quick is None:
                quick = self._open_idle(event, pipeline, now_ns, kept_ns)
            if quick is not None:
                return quick
        if kept_ns:
            event = msgspec.structs.replace(event, deadline_ns=event.deadline_ns - kept_ns)
        if share_ns > now_ns:
            done_ns = share_ns + pipeline.critical_path_ns
            done_ns += int(pipeline.drift * (done_ns - now_ns))
            if done_ns > event.deadline_ns:
                return Refusal(done_ns, is_beyond_share=True)
        if event.min_accuracy:
            return self._find_accurate(event, pipeline, share_ns, now_ns)
        allowed: Sequence[Groups | None] = [
            None if stage.model is None else stage.model.groups if stage.rule is None else ruled_groups(stage)
            for stage in pipeline.stages
        ]
        if event.max_cost is None:
            return self._search_unless_refused(event, pipeline, allowed, share_ns, now_ns)
        cheapest, least = cheapest_groups(event, pipeline)
        if least > event.max_cost:
            return Refusal(now_ns, cost=least)
        offer = self._search(event, pipeline, affordable_groups(event, pipeline), share_ns, now_ns)
        if isinstance(offer, Refusal):
            offer = self._search(event, pipeline, cheapest, share_ns, now_ns)
        return offer

    def _find_accurate(
        self, event: RequestArrived, pipeline: PipelineState, share_ns: int, now_ns: int
    ) -> Offer | Refusal:
        """Places for the cheapest variants that are accurate enough, or for the next ones where those would be late."""
        refusal: Refusal | None = None
        for models in self.variants.choices(pipeline, event.min_accuracy):
            allowed: Sequence[Groups | None] = [None if model is None else model.groups for model in models]
            if event.max_cost is not None:
                cheapest, least = cheapest_groups(event, pipeline, models)
                if least > event.max_cost:
                    refusal = refusal or Refusal(now_ns, cost=least)
                    continue
                allowed = cheapest
            offer = self._search(event, pipeline, allowed, share_ns, now_ns, models=models)
            if isinstance(offer, Offer):
                offer.models = models
                return offer
            if refusal is None or refusal.cost is not None or offer.done_ns < refusal.done_ns:
                refusal = offer
        assert refusal is not None, "a request is not admitted without a variant that is accurate enough"
        return refusal

    def find_after_loads(
        self, event: RequestArrived, pipeline: PipelineState, coming: ComingModels, now_ns: int, kept_ns: int
    ) -> Offer | Refusal:
        """As `find`, for a request of a pipeline some of whose models are still being loaded."""
        if kept_ns:
            event = msgspec.structs.replace(event, deadline_ns=event.deadline_ns - kept_ns)
        allowed: list[Groups | None] = []
        for stage in pipeline.stages:
            load = None if stage.model is None else coming.get(stage.model)
            if load is None:
                allowed.append(None if stage.model is None else ruled_groups(stage))
            else:
                assert load.partition.group is not None, "a partition that loads a model has a group"
                allowed.append([load.partition.group])
        return self._search(event, pipeline, allowed, now_ns, now_ns, coming)

    def _join_last(self, event: RequestArrived, pipeline: PipelineState, now_ns: int, kept_ns: int) -> Offer | None:
        """Join the open batch if it is the last of its partition, which is what most requests of one stage do; O(1)."""
        stage = pipeline.stages[0]
        model = stage.model
        if model is None or not model.by_deadline or stage.is_keyed or (batch := model.open_batch) is None:
            return None
        partition, rows = batch.partition, event.rows
        grown = batch.rows + rows
        planned = partition.planned
        is_usual = partition.ready and partition.slowdown == 1.0 and not batch.variance
        if planned[-1] is not batch or grown > batch.full_rows or not is_usual or partition.linked:
            return None
        most = batch.room if batch.room > grown else grown
        expected_ns, service_ns = model.estimates[partition.kind].times_ns(ceil(most))
        took_ns = batch.length_ns
        is_remote = partition.node is not None
        if grown > batch.room:
            took_ns = expected_ns + batch.gap_ns
            if is_remote:
                took_ns = partition.occupied_ns(model, grown, expected_ns) + batch.gap_ns
            added_ns = took_ns - batch.length_ns
            if added_ns > model.quickest_ns:
                start_ns = max(partition.free_at_ns, now_ns) + partition.planned_ns - batch.length_ns
                gap_ns = self._gap_ns(batch.queue_key, stage, now_ns)
                come = (start_ns - now_ns) / gap_ns if gap_ns else 0.0
                if self._shares.is_cheaper_alone(batch, rows, added_ns, come):
                    return None
        depth = sqrt(len(planned))
        tail_ns = int(batch.caution * depth * (service_ns - expected_ns))
        if is_remote:
            tail_ns += partition.return_ns(model, most, expected_ns)
        free_ns = partition.free_at_ns
        end_ns = (free_ns if free_ns > now_ns else now_ns) + partition.planned_ns + took_ns - batch.length_ns
        if partition.between_ns:
            end_ns += int(partition.between_ns * len(planned))
        deadline_ns = event.deadline_ns
        limit_ns = deadline_ns - partition.hand_off_ns - kept_ns
        if pipeline.drift:
            limit_ns -= int(pipeline.drift * (end_ns - now_ns))
        latest_ns = end_ns + tail_ns
        if self._shares.bound:
            latest_ns += self._shares.left_ns(event, pipeline, partition.group, now_ns)
        if latest_ns > limit_ns or latest_ns > batch.limit_ns:
            return None
        planned_batches.grow(batch, rows, deadline_ns, limit_ns, took_ns, tail_ns, depth)
        return Offer([(batch, rows)], end_ns, 0 if end_ns - took_ns <= now_ns else end_ns - now_ns)

    def _open_idle(self, event: RequestArrived, pipeline: PipelineState, now_ns: int, kept_ns: int) -> Offer | None:
        """Open a batch on an idle partition, as a lone request of one stage does."""
        stage, rows = pipeline.stages[0], event.rows
        model = stage.model
        if model is None or not model.by_deadline or stage.is_keyed or model.open_batch is not None:
            return None
        if len(model.groups) != 1 or self._shares.bound:
            return None
        group = model.groups[0]
        estimate = model.estimates[group.kind]
        full_rows = model.full_rows(estimate)
        if rows > full_rows or (idle := first_free(group, now_ns)) is None:
            return None
        if idle.node is not None:
            idle = self.locality.nearest_free(model, idle, now_ns)
        run_ns, service_ns = estimate.times_ns(rows)
        took_ns = run_ns if idle.node is None else idle.occupied_ns(model, rows, run_ns)
        end_ns = now_ns + took_ns
        due_ns = event.deadline_ns - kept_ns - stage.remaining_path_ns
        limit_ns, tail_ns = due_ns - idle.hand_off_ns, int(pipeline.caution * (service_ns - run_ns))
        if idle.node is not None:
            tail_ns += idle.return_ns(model, rows, run_ns)
        if end_ns > limit_ns - tail_ns:
            return None
        key = (model.config.key, "")
        batch = PlannedBatch(idle, model, key, due_ns, pipeline.caution, depth=1.0, full_rows=full_rows)
        planned_batches.insert(batch)
        planned_batches.join(batch, rows, 1.0, due_ns, limit_ns, 0, (took_ns, tail_ns))
        self._open[key] = model.open_batch = batch
        self._changes += 1
        return Offer([(batch, rows)], end_ns, 0)

    def _search(
        self,
        event: RequestArrived,
        pipeline: PipelineState,
        allowed: Sequence[Groups | None],
        share_ns: int,
        now_ns: int,
        coming: ComingModels = NONE_COMING,
        models: Sequence[ModelState | None] = (),
    ) -> Offer | Refusal:
        # Where it cannot stay with those that it joined in the first stage, it may be in time in a batch of its own.
        attempts = _attempts(pipeline, () if models or coming else allowed)
        for by_cost, opens in attempts:
            search = Search(
                event, pipeline, self._open, self._gap_ns, self._shares, self.locality, now_ns, coming, by_cost=by_cost
            )
            try:
                search.run(allowed, models, opens=opens)
                break
            except TooLateError as error:
                late = error
                search.undo()
        else:
            return Refusal(max(late.done_ns, event.deadline_ns + 1), pipeline.critical_path_ns if late.stays else 0)
        # A load is not put off, since later requests need it, too. Nor is what is planned strictly: under overload,
        # more of it is in time without prices.
        may_wait = search.opened and not coming and not search.is_linked
        if may_wait and not models and (postponed := self._larger_later(pipeline, search, share_ns, now_ns)):
            search.undo()
            elsewhere = [
                None if groups is None else [each for each in groups if each is not postponed.group]
                for groups in allowed
            ]
            if all(groups is None or groups for groups in elsewhere):
                offer = self._search(event, pipeline, elsewhere, share_ns, now_ns)
                if isinstance(offer, Offer):
                    return offer
            return Refusal(search.done_ns, postponed.wait_ns)
        if search.opened:
            self._changes += 1  # to join a batch takes less time than to open one
        for opened in search.opened:
            if not _can_run(opened.batch.partition, opened.batch):
                self._unable[opened.batch.partition.number] = opened.batch.partition
            if opened.batch.merges:
                continue  # it runs before the batch that others can join
            if (before := self._open.get(opened.batch.queue_key)) is not None:
                planned_batches.close(before)
            self._open[opened.batch.queue_key] = opened.batch
            if not opened.batch.queue_key[1]:
                opened.batch.model.open_batch = opened.batch
        return Offer(search.places, search.done_ns, search.waits_ns, is_linked=search.is_linked)

    def _search_unless_refused(
        self,
        event: RequestArrived,
        pipeline: PipelineState,
        allowed: Sequence[Groups | None],
        share_ns: int,
        now_ns: int,
    ) -> Offer | Refusal:
        """Search, unless a request like this one was refused and no place can have become earlier since then.

        An overloaded gateway would spend most of its time on searches that find nothing.
        """
        client = event.client if share_ns > now_ns else None
        changes, predictions = self._changes, pipeline.predicted_changes
        known = self._refused.get(pipeline)
        if known is not None and known.holds(event, client, changes, predictions, now_ns):
            return known.refusal
        offer = self._search(event, pipeline, allowed, share_ns, now_ns)
        if isinstance(offer, Refusal):
            # With each ns that passes, places also keep less of the time until their start.
            lacks_ns = offer.wait_ns or int((offer.done_ns - event.deadline_ns) / (1 + pipeline.drift))
            self._refused[pipeline] = KnownRefusal(
                offer,
                changes,
                predictions,
                event.rows,
                event.deadline_ns - now_ns,
                now_ns + min(lacks_ns, HOLDS_NS),
                event.priority,
                event.batch_key,
                client,
            )
        return offer

    def changed(self) -> None:
        """Record that places may have become earlier, as a batch has ended or estimates have fallen."""
        self._changes += 1

    def _larger_later(self, pipeline: PipelineState, search: Search, share_ns: int, now_ns: int) -> Postponed | None:
        """Where it is worth opening batches only later; None if it is worth it now."""
        seen: list[PartitionGroup] = []
        kept_ns = self._shares.left_ns(search.event, pipeline, search.last.partition.group, now_ns)
        left_ns = int((search.last.latest_ns - search.done_ns - kept_ns) / (1 + pipeline.drift))
        for stage, batch, start_ns, row_gap_ns in search.opened:
            group, model = batch.partition.group, batch.model
            if group is None or group in seen:
                continue
            seen.append(group)
            until_ns = max(start_ns, share_ns) - now_ns
            if until_ns <= 0 or not row_gap_ns:
                continue
            mask = tuple(each.stage.index for each in search.opened if each.batch.partition.group is group)
            table = self._opening(pipeline, stage, mask, group)
            gap_ns = row_gap_ns / part_of_rows(model, group)
            part = self._shares.part(group, model.pipelines)
            is_last = all(each.order_ns <= batch.order_ns or each.members == 1 for each in batch.partition.planned)
            come, wait_ns = larger_later_ns(
                table, until_ns, left_ns, search.last.depth, gap_ns, part, group.counted, is_last=is_last
            )
            # Who asks for less than its share while others ask for more pays no price.
            if wait_ns and not self._shares.is_entitled(pipeline, group):
                return Postponed(group, wait_ns)
            if self._shares.contended(group):
                for opened, share in search.new_batches(group):
                    if opened.merges or opened.partition.linked:
                        continue
                    keep_room(opened, ROOM * come * share / pipeline.reach[stage.index], kept_ns, now_ns)
        return None

    def _opening(
        self, pipeline: PipelineState, stage: StageState, opened: tuple[int, ...], group: PartitionGroup
    ) -> Opening:
        known = self._openings.get((stage, opened, group))
        if known is None or known[0] != pipeline.predicted_changes:
            known = (pipeline.predicted_changes, opening(pipeline, stage, opened, group, self._hand_off_ns))
            self._openings[stage, opened, group] = known
        return known[1]

    # -- demand

    def _gap_ns(self, key: QueueKey, stage: StageState, now_ns: int) -> float:
        """The average time between two rows of a queue, 0 if it is not known."""
        model = stage.model
        assert model is not None, "a combiner has no queue"
        if stage.is_keyed and not model.mixes_keys:
            last_ns, gap_ns = self._gaps.get(key, (0, 0.0))
            return present_gap_ns(gap_ns, last_ns, now_ns) if gap_ns else 0.0
        rate = 0.0
        for pipeline in model.pipelines:
            if pipeline.row_gap_ns:
                gap_ns = present_gap_ns(pipeline.row_gap_ns, pipeline.last_row_ns, now_ns)
                rate += pipeline.expected_runs.get(model, 0.0) / gap_ns
        return 1 / rate if rate else 0.0

    def _count_key(self, key: QueueKey, rows: int, now_ns: int) -> None:
        """Record rows of a batch key, whose time between two rows is smoothed as that of a pipeline."""
        gaps = self._gaps
        last_ns, gap_ns = gaps.pop(key, (0, 0.0))
        if len(gaps) == DEMANDS:
            del gaps[next(iter(gaps))]
        silent_ns = now_ns - last_ns
        if silent_ns >= FORGET_NS or not last_ns:
            gap_ns = 0.0
        elif gap_ns:
            gap_ns += KEY_WEIGHT * (silent_ns / rows - gap_ns)
        else:
            gap_ns = silent_ns / rows
        gaps[key] = (now_ns, gap_ns)

    # -- progress

    def give(self, request: Request, offer: Offer) -> None:
        """Record the places of an admitted request."""
        places = request.places = offer.places
        request.models = offer.models
        request.is_linked = offer.is_linked
        if request.arrival.min_accuracy and not request.models:
            request.models = self.variants.most_accurate(request.pipeline)
        request.waits_ns = offer.waits_ns
        pipeline = request.pipeline
        request.kept = pipeline.drift
        if places:
            self._linked += offer.is_linked
            request.placed = 1 if len(places) == 1 else sum([place is not None for place in places])
            if pipeline.clients:
                request.client = self._shares.client(request.arrival, pipeline)
            for stage, place in enumerate(places):
                if place is not None:
                    pipeline.planned_rows[stage] += request.rows
                    if request.client is not None:
                        self._shares.planned(request.client, stage, request.rows)

    def completed(self, request: Request, now_ns: int) -> None:
        """Learn from a request that is complete whether the places of its pipeline keep enough time.

        The share of late ones follows what the pipeline's percentile allows: the time that is kept rises with each late
        batch, and falls a little with each request that is in time once as many were as the late ones allow.
        """
        if request.waits_ns:
            pipeline = request.pipeline
            if now_ns > request.deadline_ns:
                self.keep_more(request, now_ns - request.deadline_ns, now_ns)
            elif pipeline.owed:
                pipeline.owed -= 1
            elif pipeline.drift:
                self._changes += 1
                pipeline.drift = max(pipeline.drift - LATE_STEP / _in_time_a_late(pipeline), 0.0)

    def keep_more(self, request: Request, late_ns: int, now_ns: int) -> None:
        """Keep more time in places since a request that waited is late, unless what is kept by now would do for it.

        All that was admitted with as little time as the first late one is to come late as well.
        """
        pipeline = request.pipeline
        enough = request.kept + late_ns / request.waits_ns
        usual = _in_time_a_late(pipeline)
        pipeline.owed = min(pipeline.owed + usual, MOST_OWED * usual)
        if enough > pipeline.drift and pipeline.raised_ns != now_ns:  # all of a batch are late together
            pipeline.raised_ns = now_ns
            pipeline.drift = min(pipeline.drift + LATE_STEP, AMPLE * enough, MOST_KEPT)

    def forgive(self, pipeline: PipelineState) -> None:
        """Let the time that places keep decay, since nothing is learned while it causes refusals."""
        self._changes += 1
        pipeline.drift /= 2
        pipeline.owed = 0

    def release(self, request: Request, stage: int) -> None:
        """Give the place of a stage back, if it has one."""
        places = request.places
        if places and (place := places[stage]) is not None:
            if request.is_linked:
                _unlink(request, stage, place[0])
            places[stage] = None
            self._changes += 1
            self._discount(request, stage)
            batch, rows = place
            self._depart(batch, rows, 1)

    def _forget(self, batch: PlannedBatch) -> None:
        if self._open.get(batch.queue_key) is batch:
            del self._open[batch.queue_key]
            if batch.model.open_batch is batch:
                batch.model.open_batch = None

    def started(
        self,
        partition: PartitionState,
        queue: Queue,
        entries: Sequence[Entry],
        now_ns: int,
        free_ns: int,
        back_ns: int,
    ) -> None:
        """Record that a partition runs entries, whose places may have been in other batches than its next one.

        Then others that have their places in that one get theirs, which are early enough: entries start in the order of
        their deadlines. The partition is free again at `free_ns`, and the entries have run at `back_ns`.
        """
        self._changes += 1
        if self._linked and (partition.linked or any(entry.request.is_linked for entry in entries)):
            self._started_linked(partition, entries, now_ns, free_ns, back_ns)
            return
        planned = run_together(partition, queue.key, now_ns)
        if planned:
            _exchange(planned, queue, entries)
        batch: PlannedBatch | None = None
        rows, members = 0.0, 0
        before = planned[0].members if planned else 0
        vacated: PartitionState | None = None
        for entry in entries:
            request = entry.request
            places = request.places
            if not places or (place := places[entry.stage]) is None:
                continue
            places[entry.stage] = None
            self._discount(request, entry.stage)
            if place[0] is not batch:
                if batch is not None:
                    self._depart(batch, rows, members)
                    vacated = vacated or _vacated(batch, partition)
                batch, rows, members = place[0], 0.0, 0
            rows += place[1]
            members += 1
        if batch is not None:
            self._depart(batch, rows, members)
            vacated = vacated or _vacated(batch, partition)
        if vacated is not None and planned and planned[0].members == before and _can_run(vacated, planned[0]):
            # Its time here is taken by those that start, whose time there is free: its rows have not come yet.
            planned_batches.move(planned[0], vacated)
            planned = planned[1:]
        if len(planned) > 1 and planned[-1].members:
            planned_batches.merge(planned[-1])

    def _started_linked(
        self, partition: PartitionState, entries: Sequence[Entry], now_ns: int, free_ns: int, back_ns: int
    ) -> None:
        """As `started`, where planned batches wait for others: who starts leaves its place, and gets no other."""
        changed = {partition: None}
        for entry in entries:
            request = entry.request
            if not request.places or (place := request.places[entry.stage]) is None:
                continue
            batch, rows = place
            if request.is_linked:
                for later in _unlink(request, entry.stage, batch):
                    planned_batches.feed(later, back_ns)
                    if back_ns > batch.end_ns:
                        changed[later.partition] = None
            request.places[entry.stage] = None
            self._discount(request, entry.stage)
            self._depart(batch, rows, 1)
        timeline.update(changed, now_ns, timeline.BatchStart(partition, free_ns, (), back_ns))

    def _discount(self, request: Request, stage: int) -> None:
        """Count the rows of a request no more among those that have places for a stage."""
        request.placed -= 1
        if not request.placed:
            self._linked -= request.is_linked
        request.pipeline.planned_rows[stage] -= request.rows
        if request.client is not None:
            self._shares.planned(request.client, stage, -request.rows)

    def _depart(self, batch: PlannedBatch, rows: float, members: int) -> None:
        planned_batches.leave(batch, rows, members)
        if not batch.members:
            self._forget(batch)

    def settle_rows(self, request: Request, stage: int, rows: int, now_ns: int) -> None:
        """Replace the expected rows of a stage by the known ones."""
        if request.places and (place := request.places[stage]) is not None:
            self._changes += 1
            batch, expected = place
            planned_batches.change_rows(batch, rows - expected)
            request.places[stage] = (batch, rows)
            if batch.partition.linked:
                timeline.update((batch.partition,), now_ns)

    def affordable_rows(self, partition: PartitionState, queue: Queue, rows: int, from_ns: int, now_ns: int) -> int:
        """The rows of a batch, at most `rows`, that makes nothing late that is planned behind it.

        It has the rows that were planned in any case. Where those that are planned behind it have no time to spare, it
        has more only as whole batches: what would be left of one would take the time of a small batch.
        """
        if not partition.planned:
            return rows
        head = queue.first_not_before(from_ns) or queue.head()
        place = head.place
        if place is None:
            return rows
        batches = run_together(partition, queue.key, now_ns) or [place[0]]
        planned = min(ceil(sum([max(batch.rows, batch.room) for batch in batches])), rows)
        if rows == planned:
            return rows
        estimate = place[0].model.estimates[partition.kind]
        planned_ns = estimate.expected_ns(planned)
        left_ns, left_of_others_ns = slack_ns(partition, queue.key, batches, now_ns)
        whole = _whole_rows(queue, from_ns, rows)
        while rows > planned:
            added_ns = estimate.expected_ns(rows) - planned_ns
            if added_ns <= left_ns or (rows <= whole and added_ns <= left_of_others_ns):
                break
            rows -= 1
        return rows

    def forget(self, pipeline: PipelineState) -> None:
        """Forget a pipeline that is gone."""
        for known in [key for key in self._openings if key[0] in pipeline.stages]:
            del self._openings[known]
        self._refused.pop(pipeline, None)
        self._shares.forget(pipeline)
        self.variants.forget(pipeline)

    # -- partitions

    def is_promised(self, partition: str, model: str) -> bool:
        """True if a batch of a model is planned for a partition."""
        return any(batch.model.config.key == model for batch in self._fleet.partitions[partition].planned)

    def sync(self, changed: PartitionState, now_ns: int) -> None:
        """Move the batches of a partition that is lost or overdue, or does not hold a model any more, to others.

        The batches of others that found no partition before are moved, too, as far as there is one for them now.
        """
        self._changes += 1
        if self._removals != self._fleet.removals:
            self._removals = self._fleet.removals
            self._openings = {key: known for key, known in self._openings.items() if key[2].partitions}
        unable = {**self._unable, **self._fleet.moved, changed.number: changed}
        self._unable.clear()
        self._fleet.moved.clear()
        for number in sorted(unable):
            if self._move_unable(unable[number], now_ns):
                self._unable[number] = unable[number]
        if self._linked:
            timeline.update([each for each in self._fleet.partitions.values() if each.linked], now_ns)

    def _move_unable(self, partition: PartitionState, now_ns: int) -> bool:
        """Move the batches to others that a partition cannot run; True if there is no other one for some."""
        stay = False
        for batch in [each for each in partition.planned if not _can_run(partition, each)]:
            hosts = [
                host for group in batch.model.groups for host in group.partitions.values() if _can_run(host, batch)
            ]
            if hosts:
                planned_batches.move(batch, min(hosts, key=lambda host: planned_until_ns(host, now_ns)))
            else:
                stay = True
        return stay

    def resized(self, partition: PartitionState) -> None:
        """Measure what is planned for a partition again, whose kind has changed; `sync` follows."""
        for batch in partition.planned:
            planned_batches.measure(batch)


def _attempts(pipeline: PipelineState, allowed: Sequence[Groups | None]) -> Sequence[tuple[bool, bool]]:
    """The searches for the places of a request on `allowed` groups (empty: none to choose from), until one finds them.

    They go by cost first, as batches do, where a plan has kinds to choose from. After late requests they do not: places
    that end first leave most of the time.
    """
    if pipeline.single:
        return ONE_STAGE
    if pipeline.drift or pipeline.feeds or pipeline.stages[-1].cost_to_go is None:
        return STAGES
    for stage, groups in zip(pipeline.stages, allowed, strict=False):
        if groups is not None and stage.rule is None and are_of_kinds(groups):
            return STAGES_BY_COST
    return STAGES


def _unlink(request: Request, stage: int, batch: PlannedBatch) -> list[PlannedBatch]:
    """Unlink the batch of a stage that leaves it from those of other stages; returns the ones that waited for it."""
    places = request.places
    later = [place[0] for index in request.pipeline.feeds[stage] if (place := places[index]) is not None]
    for each in later:
        planned_batches.link(batch, each, -1)
    for index in request.pipeline.fed_by[stage]:
        if (place := places[index]) is not None:
            planned_batches.link(place[0], batch, -1)
    return later


def _in_time_a_late(pipeline: PipelineState) -> int:
    """The number of requests in time for each late one, where the feedback settles."""
    return round(1 / (LATE_PART * late_share(pipeline.config))) - 1


def late_share(config: PipelineConfig) -> float:
    """The share of the admitted requests that may be late, at least that for which margins can be kept."""
    return max(1 - config.percentile / 100, LEAST_LATE)


def _vacated(batch: PlannedBatch, partition: PartitionState) -> PartitionState | None:
    """The partition of a batch that is gone, if that is another one, equal to `partition`."""
    host = batch.partition
    return host if not batch.members and host is not partition and host.group is partition.group else None


def _can_run(partition: PartitionState, batch: PlannedBatch) -> bool:
    return partition.ready and not partition.overdue and batch.model.config.key in partition.models


def _whole_rows(queue: Queue, from_ns: int, most: int) -> int:
    """The rows, at most `most`, of the first entries that leave no part of a planned batch behind."""
    whole, taken, left = 0, 0, 0.0
    batch: PlannedBatch | None = None
    for entry in queue.following(from_ns):
        taken += entry.rows
        if taken > most:
            return whole
        places = entry.request.places  # not `entry.place`, which would be a call for each entry
        if places and (place := places[entry.stage]) is not None:
            if place[0] is not batch:
                if left > ROUNDING:
                    return whole  # entries of several batches alternate
                if entry.request.pipeline.reach[entry.stage] < 1:
                    return most  # it is not certain how many rows it has
                batch = place[0]
                left = batch.rows - place[1]
            else:
                left -= place[1]
        if left <= ROUNDING:
            whole = taken
    return most if left <= ROUNDING else whole


def _exchange(batches: Sequence[PlannedBatch], queue: Queue, entries: Sequence[Entry]) -> None:
    """Exchange the places of entries that start, but not in `batches`, with those of entries that wait for these."""
    others = [
        entry
        for entry in entries
        if (places := entry.request.places) and (place := places[entry.stage]) is not None and place[0] not in batches
    ]
    if not others:
        return
    left = sum([batch.members for batch in batches]) - (len(entries) - len(others))
    for entry in itertools.islice(queue.following(0), MOST_EXCHANGED):
        if not others or left <= 0:
            return
        place = entry.place
        if place is not None and place[0] in batches:
            left -= 1
            other = next((each for each in reversed(others) if each.rows == entry.rows), None)
            if other is None:
                continue
            others.remove(other)
            mine, its = entry.request.places, other.request.places
            mine[entry.stage], its[other.stage] = its[other.stage], mine[entry.stage]
