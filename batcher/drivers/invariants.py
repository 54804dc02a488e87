"""The invariants of the scheduler, asserted by tests after every step."""

from collections import Counter
from collections.abc import Sequence

from sluice.batcher.dispatch.copies import is_superseded, live_copies
from sluice.batcher.dispatch.timeouts import TimeoutCause
from sluice.batcher.fleet.partition_group import first_idle
from sluice.batcher.fleet.run_queue import RunQueue
from sluice.batcher.queues.priority_queue import PriorityQueue
from sluice.batcher.queues.progress import batch_key_for
from sluice.batcher.queues.queue import Queue
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.state import IN_FLIGHT, Entry, MemberTable, ModelState, PartitionGroup, PlannedBatch
from sluice.models.units import INFINITE_NS


def check_invariants(scheduler: Scheduler) -> None:
    """Assert that counts agree with what they count, bounds hold and nothing is forgotten; O(everything)."""
    _check_requests(scheduler)
    _check_queues(scheduler)
    _check_batches(scheduler)
    _check_groups(scheduler)
    _check_places(scheduler)
    _check_foresight(scheduler)


def _check_requests(scheduler: Scheduler) -> None:
    limits = scheduler.spec.limits
    for name, pipeline in scheduler.pipelines.items():
        mine = [request for request in scheduler.requests.values() if request.pipeline is pipeline]
        assert pipeline.outstanding == len(mine), f"{name} counts {pipeline.outstanding} requests, has {len(mine)}"
        assert pipeline.outstanding <= limits.queue_requests, f"{name} exceeds its bound of requests"
    for pipeline in scheduler.served.retiring:
        mine = [request for request in scheduler.requests.values() if request.pipeline is pipeline]
        assert pipeline.outstanding == len(mine) > 0, f"{pipeline.config.name} is retired and has nothing to wait for"
    for request in scheduler.requests.values():
        most = max((len(live_copies(entry)) for entry in request.entries), default=0)
        assert most <= len(scheduler.spec.partitions), f"request {request.identity} has {most} copies"
        assert not request.settled, f"settled request {request.identity} is still known"
        assert request.open_stages > 0, f"request {request.identity} has nothing left to do and no outcome"
        combined = any(identity == request.identity for identity, _ in scheduler._combining)
        copies = [copy for entry in request.entries for copy in live_copies(entry)]
        waiting = combined or any(_waits(scheduler, copy) for copy in copies)
        assert waiting, f"request {request.identity} is neither queued nor running"
    held = {id(request): request for request in scheduler.requests.values()}
    for batch in scheduler.dispatcher.batches.values():
        held.update((id(entry.request), entry.request) for entry in batch.entries)
    for request in scheduler._combining.values():
        held[id(request)] = request
    for queue in (queue for queues in scheduler.dispatcher.fleet.queues.by_model.values() for queue in queues.values()):
        if queue.response_order is not None:
            held.update((id(entry.request), entry.request) for entry in queue.response_order.held)
    used = sum(request.arrival.memory_bytes for request in held.values())
    assert scheduler.memory.used_bytes == used, f"{scheduler.memory.used_bytes} bytes reserved, {used} held"
    assert used <= limits.memory_bytes, "more memory is reserved than there is"


def _waits(scheduler: Scheduler, entry: Entry) -> bool:
    """True if an entry is queued, runs, or has run and its answer is held back."""
    is_held = scheduler.dispatcher.holds_answer(entry)
    return entry.queued or entry.retry_group is not None or entry.batch is not None or is_held


def _check_queues(scheduler: Scheduler) -> None:
    dispatcher = scheduler.dispatcher
    run_queues = dispatcher.wakeups.run_queues
    late = [(serial, entry) for *_, serial, entry, cause in dispatcher.timeouts.planned if cause is TimeoutCause.LATE]
    watched = {id(entry) for serial, entry in late if serial == entry.late_timeout}
    for model in dispatcher.models.values():
        outstanding = 0
        for key, queue in dispatcher.fleet.queues.by_model[model.config.key].items():
            live = list(queue.entries())
            assert queue.batch_key == key, f"queue of {key!r} bears the key {queue.batch_key!r}"
            assert queue.live == len(live), f"queue counts {queue.live} entries, has {len(live)}"
            assert queue.rows == sum(entry.rows for entry in live), "a queue's rows do not add up"
            if queue:
                groups = [group for group in model.groups if queue.only in (None, (group.kind, group.price))]
                if queue.host is not None:
                    groups = [group for group in groups if queue.host.ready and queue.host.group is group]
                assert all(_is_known(queue, run_queues[group]) for group in groups), "a queue is overlooked"
            retried = [entry for group in queue.retries for entry in group]
            assert all(queue.retries), "a group to be retried is empty"
            assert all(not entry.request.settled for entry in live + retried), "a settled request still waits"
            evicted = [entry for entry in live + retried if entry.request.pipeline.evicts]
            assert all(id(entry) in watched for entry in evicted), "a waiting request has no timeout"
            if dispatcher.instances.is_ahead(queue):
                continue
            outstanding += queue.rows + sum(entry.rows for entry in retried)
        running = sum(batch.rows for batch in dispatcher.batches.values() if batch.queue_key[0] == model.config.key)
        under_way = sum(batch.queue_key[0] == model.config.key for batch in dispatcher.batches.values())
        assert model.under_way == under_way, f"{model.config.key}: batches under way do not add up"
        assert model.outstanding == outstanding + running, f"{model.config.key}: outstanding rows do not add up"
        mine = [batch for batch in dispatcher.batches.values() if batch.queue_key[0] == model.config.key]
        extra = sum(batch.rows for batch in mine if batch.is_extra)
        assert model.extra_rows == extra, f"{model.config.key}: rows of competing copies do not add up"


def _check_batches(scheduler: Scheduler) -> None:
    dispatcher = scheduler.dispatcher
    partitions = dispatcher.fleet.partitions.values()
    second = dispatcher.second_batches.waiting
    assert all(not batch.revoking for batch in second if batch.live), "a batch that is being revoked may be revoked"
    listed = [batch for partition in partitions for batch in (*partition.batches, *partition.suspended)]
    assert sorted(batch.identity for batch in listed) == sorted(dispatcher.batches), "a batch is on no partition"
    for partition in partitions:
        assert not any(batch.is_suspended for batch in partition.batches), "a suspended batch takes time"
        assert all(batch.is_suspended for batch in partition.suspended), "a batch waits that was not suspended"
        assert len(partition.batches) <= IN_FLIGHT, f"{partition.name} holds {len(partition.batches)} batches"
        assert not partition.batches or partition.batches[0] not in second, f"{partition.name} runs a second batch"
        assert partition.batches or not partition.overdue, f"{partition.name} is overdue and runs nothing"
        if partition.throttled:
            assert partition.group is not None, f"{partition.name} is throttled and was never ready"
            assert first_idle(partition.group) is not partition, f"{partition.name} is throttled and may be chosen"
            wake_ns = dispatcher.wakeups.run_queues[partition.group].wake_ns
            assert partition.batches or wake_ns is not None, f"{partition.name} is throttled and not reconsidered"
    for key, model in dispatcher.models.items():
        for kind, estimate in model.estimates.items():
            bound = model.batch_limits.get(kind)
            most = model.config.max_batch if bound is None else bound.rows
            assert estimate.max_rows == most >= 1, f"batches of {key} on {kind} are not kept to {most} rows"
    for batch in listed:
        limit = dispatcher.models[batch.queue_key[0]].config.max_batch
        assert batch.rows == sum(entry.rows for entry in batch.entries), "a batch's rows do not add up"
        assert batch.rows <= limit, f"a batch of {batch.rows} rows exceeds the maximum of {limit}"
        keys = {
            batch_key_for(entry.request, entry.request.pipeline.stages[entry.stage])
            if isinstance(dispatcher.fleet.queues.find(entry.queue_key), PriorityQueue)
            else entry.queue_key[1]
            for entry in batch.entries
        }
        assert len(keys) == 1, f"a batch mixes the keys {sorted(keys)}"
        live = sum(not entry.request.settled and not is_superseded(entry) for entry in batch.entries)
        assert batch.live == live, "live members do not add up"
        assert not any(entry.queued for entry in batch.entries), "an entry is queued and running"


def _check_groups(scheduler: Scheduler) -> None:
    fleet = scheduler.dispatcher.fleet
    for partition in fleet.partitions.values():
        mine = [group for group in fleet.groups if partition.number in group.partitions]
        assert mine == ([] if partition.group is None else [partition.group]), f"{partition.name} is in other groups"
        for group in mine:
            mine_is = (partition.kind, partition.price, partition.link, partition.models)
            equal = mine_is == (group.kind, group.price, group.link, group.models)
            assert equal, f"{partition.name} is no equal of its group {group.number}"
            assert group.round_trip_ns >= partition.round_trip_ns, f"the way to {partition.name} is longer than thought"
            assert group.ns_per_byte >= partition.ns_per_byte, f"the link to {partition.name} is slower than thought"
    for group in fleet.groups:
        assert group.partitions, f"group {group.number} has no partitions"
        assert group.hosted == {key: fleet.models[key] for key in sorted(group.models)}, "a group has other models"
        assert group.ready_count == sum(each.ready for each in group.partitions.values()), "a group has others up"
        if group.table is not None:
            _check_table(group.table, group)
    kinds = [(group.kind, group.price, group.link, group.models) for group in fleet.groups]
    assert len(set(kinds)) == len(kinds), "equal partitions are in two groups"
    for node in fleet.nodes.by_name.values():
        on_it = {each.number: each for each in fleet.partitions.values() if each.node is node}
        assert node.partitions == on_it, f"node {node.name} has other partitions"
    for key, model in fleet.models.items():
        assert model.groups == [group for group in fleet.groups if key in group.models], f"{key} is on other groups"
    for name, pipeline in scheduler.pipelines.items():
        if not any(stage.config.variants for stage in pipeline.stages):  # a plan may have chosen another one since
            models = [stage.model for stage in pipeline.stages if stage.model is not None]
            assert pipeline.degraded != all(map(_is_up, models)), f"{name} does not know which partitions are away"


def _check_table(table: MemberTable, group: PartitionGroup) -> None:
    members = {each.number: each for each in table.members if each is not None}
    for number, partition in group.partitions.items():
        if partition.is_stale:
            assert partition in group.stale, f"{partition.name} is forgotten when its table is brought up to date"
            continue
        position = partition.position
        assert members.get(number) is partition is table.members[position], f"{partition.name} is not in its table"
        free_ns = partition.free_at_ns if partition.ready else INFINITE_NS
        until_ns = free_ns + partition.planned_ns if partition.ready else INFINITE_NS
        order_ns = partition.planned[-1].order_ns if partition.planned else -1
        known = table.free_ns[position], table.until_ns[position], table.order_ns[position], table.planned_ns[position]
        assert known == (free_ns, until_ns, order_ns, partition.planned_ns), f"the bounds of {partition.name} are wrong"


def _is_up(model: ModelState) -> bool:
    """True if partitions hold a model and all of them are up."""
    return bool(model.groups) and all(group.ready_count == len(group.partitions) for group in model.groups)


def _is_known(queue: Queue, run_queue: RunQueue) -> bool:
    """True if a group will reconsider a queue for what comes first in it."""
    if queue in run_queue.deferred:
        return queue in run_queue.waiting_for_idle or any(item[2] is queue for item in run_queue.timers)
    return any(item[5] is queue and run_queue.ready.get(queue) == item[4] for item in run_queue.waiting)


def _check_places(scheduler: Scheduler) -> None:
    for group in scheduler.dispatcher.fleet.groups:
        assert group.ready_count == sum(each.ready for each in group.partitions.values()), "partitions are miscounted"
    places = [place for request in scheduler.requests.values() for place in request.places if place is not None]
    planned = [batch for partition in scheduler.dispatcher.fleet.partitions.values() for batch in partition.planned]
    assert all(any(batch is each for each in planned) for batch, _ in places), "a place is in no planned batch"
    for partition in scheduler.dispatcher.fleet.partitions.values():
        assert partition.planned_ns == sum(batch.length_ns for batch in partition.planned), (
            "planned times do not add up"
        )
        linked = sum(batch.links is not None for batch in partition.planned)
        assert partition.linked == linked, f"{partition.name} counts {partition.linked} linked batches, has {linked}"
        orders = [batch.order_ns for batch in partition.planned]
        assert orders == sorted(orders), "planned batches are out of order"
    for batch in planned:
        rows = [rows for each, rows in places if each is batch]
        assert batch.members == len(rows) > 0, f"a planned batch counts {batch.members} places, has {len(rows)}"
        assert abs(batch.rows - sum(rows)) < 1e-6, "the rows of a planned batch do not add up"
    _check_links(scheduler, planned)
    _check_hosts(scheduler, planned)
    for request in scheduler.requests.values():
        for entry in request.entries:
            assert entry.batch is None or not request.places or request.places[entry.stage] is None, (
                "it runs and has a place"
            )


def _check_hosts(scheduler: Scheduler, planned: Sequence[PlannedBatch]) -> None:
    """No batch is planned for a partition without its model where another one, which is up, holds that."""
    for batch in planned:
        key, host = batch.model.config.key, batch.partition
        if key not in host.models and key not in scheduler.served.residency.loading(host.name):
            able = [
                each.name
                for each in scheduler.dispatcher.fleet.partitions.values()
                if each.ready and not each.overdue and key in each.models
            ]
            assert not able, f"a batch of {key} is planned for {host.name}, although {able[0]} holds it"


def _check_links(scheduler: Scheduler, planned: Sequence[PlannedBatch]) -> None:
    """Linked batches wait for each other as the stages of their requests do."""
    expected = Counter(
        (first[0], second[0])
        for request in scheduler.requests.values()
        if request.is_linked
        for source, others in enumerate(request.pipeline.feeds)
        for later in others
        if (first := request.places[source]) is not None and (second := request.places[later]) is not None
    )
    linked = [(batch, links) for batch in planned if (links := batch.links) is not None]
    before = {(batch, later): count for batch, links in linked for later, count in links.before.items()}
    after = {(source, batch): count for batch, links in linked for source, count in links.after.items()}
    assert before == after == expected, "planned batches are linked otherwise than the stages of their requests"


def _check_foresight(scheduler: Scheduler) -> None:
    loader = scheduler.served.loader
    if not isinstance(loader, OnDemandLoader):
        return
    foresight = loader.foresight
    assert foresight.followed.keys() <= scheduler.requests.keys(), "a request is followed that has its outcome"
    reads = [
        (model, request, stage)
        for requests in (foresight.followed, foresight._departed)
        for request, followed in requests.items()
        for stage, model in followed.expected.items()
    ]
    expected = [(model, *reader) for model, times_ns in foresight._times_ns.items() for reader in times_ns]
    assert Counter(reads) == Counter(expected), "what requests are expected to need is mixed up"
    assert foresight._planned.keys() <= foresight._times_ns.keys(), "a load is planned for no request"
    assert foresight._prepared.keys() <= foresight._times_ns.keys(), "a load was ordered ahead for no request"
    ended = foresight.hits + foresight.late + foresight.missed + foresight.lost
    assert ended + foresight.undecided == loader.prewarms, "a load that was ordered ahead has no end, or two"
    passed = [each for followed in foresight.followed.values() for each in followed.passed]
    assert foresight._passed == Counter(passed), "requests that need a model no more are miscounted"
