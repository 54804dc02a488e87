"""Pools: the models that share partitions by one instance policy, and the partitions that have been chosen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.instances.base import Contender, InstanceLoads, InstancePolicy, PoolView
from sluice.batcher.instances.exclusive import ExclusivePartitions
from sluice.batcher.instances.fair_affinity import FairAffinity
from sluice.batcher.instances.in_order import Balance, HomeHash, RoundRobin, ShortestFirst
from sluice.batcher.instances.multilevel import MultilevelQueues
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule
from sluice.batcher.queues.ordered_entries import requeue
from sluice.batcher.queues.queue import NO_WAITERS, Queue
from sluice.batcher.queues.queue_table import base_key
from sluice.batcher.state import Entry, ModelState, PartitionState, QueueKey

COMPACT = 1024
"""Least number of queues that wait for their time at which those whose requests were withdrawn are dropped."""


@dataclass(slots=True, eq=False)
class ChosenPartition:
    """A partition that is to run the next batch of a queue: its entries wait in `queue`, which only it may run.

    Up to `most` rows may be there, and others of their key may join them. It `is_loading` until it holds the model.
    """

    partition: PartitionState
    queue: Queue
    most: int
    is_loading: bool


class _Pool:
    """The models with one policy: `waiting` are their queues with work that have no partition yet."""

    __slots__ = ("config", "policy", "waiting")

    def __init__(self, config: InstanceConfig, fleet: Fleet) -> None:
        self.config = config
        self.policy = _new_policy(config, fleet)
        self.waiting: dict[Queue, None] = {}


class Instances:
    """Gives free partitions to the models whose instances a policy chooses.

    The entries of such a model wait in queues that are offered to no partition, until the policy chooses one that is
    free, or will be when its next batch would arrive. Then up to a batch of them moves to the queue of that partition,
    which closes it by the batch policy of the model. A partition that does not hold the model loads it first, and is
    given no other batch of a pool before that one.

    Entries that were sent ahead of their time wait in queues of their own, one for each time, which compete only where
    the rule looks ahead.

    `wake_ns` is when `assign` is due; None until something changes. `warm` and `cold` count the partitions that were
    chosen with and without a load.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pools: dict[InstanceConfig, _Pool] = {}
        self._chosen: dict[str, ChosenPartition] = {}
        self._open: dict[QueueKey, ChosenPartition] = {}
        self._ahead: list[tuple[int, int, Queue]] = []  # heap by the time at which entries begin
        self._begins: dict[Queue, int] = {}
        self._compact_above = COMPACT
        self._turns: dict[str, int] = {}
        self._turn = 0
        self._assigned_ns = -1
        self.wake_ns: int | None = None
        self.warm = self.cold = 0

    @property
    def steals(self) -> int:
        """The number of partitions that models with `exclusive` took from others."""
        policies = (pool.policy for pool in self._pools.values())
        return sum(policy.steals for policy in policies if isinstance(policy, ExclusivePartitions))

    @property
    def enabled(self) -> bool:
        """True once there were entries of models with a policy."""
        return bool(self._pools)

    @property
    def chosen(self) -> Collection[ChosenPartition]:
        """The partitions whose batches have not started."""
        return self._chosen.values()

    def has_chosen(self, partition: PartitionState) -> bool:
        """True if a policy has chosen a partition for a batch that has not started."""
        chosen = self._chosen.get(partition.name)
        return chosen is not None and (bool(chosen.queue) or chosen.is_loading)

    def waiting(self) -> list[Queue]:
        """The queues that wait for a partition."""
        return [queue for pool in self._pools.values() for queue in pool.waiting]

    # -- entries

    def enter(self, entry: Entry, model: ModelState, queue: Queue, now_ns: int) -> Queue:
        """The queue for a new entry, whose key is that of `queue`."""
        self._pool(model).policy.entered(model, entry)
        return self._enter_ahead(entry, queue) if _begin_ns(entry) > now_ns else self.join(entry, queue)

    def join(self, entry: Entry, queue: Queue) -> Queue:
        """The queue for an entry that may begin: `queue`, or that of a partition whose batch has room for it."""
        chosen = self._open.get(queue.key)
        if chosen is None or not chosen.queue or chosen.queue.rows + entry.rows > chosen.most:
            return queue
        return queue if queue else chosen.queue

    def _enter_ahead(self, entry: Entry, queue: Queue) -> Queue:
        begin_ns = _begin_ns(entry)
        own = self._fleet.queues.of_begin(queue.key, begin_ns)
        if own not in self._begins:
            if len(self._ahead) > self._compact_above:
                self._begins = {each: at_ns for each, at_ns in self._begins.items() if each}
                self._ahead = [item for item in self._ahead if item[2] in self._begins]
                heapify(self._ahead)
                self._compact_above = max(COMPACT, 2 * len(self._ahead))
            heappush(self._ahead, (begin_ns, entry.sequence, own))
            self._begins[own] = begin_ns
        return own

    def due(self, now_ns: int) -> Iterator[Entry]:
        """The entries that were sent ahead of their time and may begin now."""
        while self._ahead and self._ahead[0][0] <= now_ns:
            _, _, queue = heappop(self._ahead)
            for entry in list(queue.entries()):
                if entry.queued:  # else its request has ended with the one before
                    yield entry
            del self._begins[queue]

    def is_ahead(self, queue: Queue) -> bool:
        """True if the entries of a queue were sent ahead of their time, which has not come."""
        return queue in self._begins

    def offer(self, queue: Queue, model: ModelState, now_ns: int) -> None:
        """Let a queue compete for partitions, since another entry is the first of it."""
        pool = self._pool(model)
        if pool.config.lookahead or queue not in self._begins:
            pool.waiting[queue] = None
        self.changed(now_ns)

    def changed(self, now_ns: int) -> None:
        """Assign again: a partition became free, or entries are gone."""
        if self._pools:
            self.wake_ns = now_ns if now_ns > self._assigned_ns else self._assigned_ns + 1

    # -- partitions

    def started(self, partition: PartitionState, queue: Queue) -> None:
        """Record that a batch of a partition's queue has started."""
        if not queue:
            self._drop(partition)

    def load_ended(self, name: str, key: str, now_ns: int) -> None:
        """Record that a partition has loaded a model, or failed to: then what was to run there waits for another."""
        chosen = self._chosen.get(name)
        if chosen is not None and chosen.is_loading and chosen.queue.model == key:
            chosen.is_loading = False
            self.sync(chosen.partition, now_ns)

    def sync(self, partition: PartitionState, now_ns: int) -> None:
        """Follow a partition that was lost or closed, or whose models have changed."""
        self.changed(now_ns)
        chosen = self._chosen.get(partition.name)
        if chosen is None:
            return
        if not partition.ready or partition.closed or not (chosen.is_loading or chosen.queue.model in partition.models):
            self._give_back(chosen, now_ns)
        elif not chosen.is_loading and partition.group is not None:
            self._fleet.wakeups.notify(chosen.queue, partition.group, now_ns)

    def assign(self, loads: InstanceLoads, now_ns: int) -> None:
        """Choose partitions until all that are free, or all entries, have to wait; O(partitions + queues) for each.

        To be called at every wake-up: what changes after it, in the same one, is looked at 1 ns later.
        """
        self._assigned_ns = now_ns
        if self.wake_ns is None or self.wake_ns > now_ns:
            return
        self.wake_ns = None
        for chosen in [each for each in self._chosen.values() if not each.queue and not each.is_loading]:
            self._drop(chosen.partition)  # its entries were all withdrawn
        for pool in self._pools.values():
            while contenders := self._contenders(pool, now_ns):
                up = [each for each in self._fleet.partitions.values() if each.ready and not each.closed]
                free = sorted((each for each in up if self._is_free(each, now_ns)), key=self._last_turn)
                if not free:
                    break
                view = PoolView(up, free, loads, self._needed, now_ns)
                assignment = pool.policy.choose(contenders, view)
                if assignment is None:
                    break
                self._carry_out(assignment.contender, assignment.partition, view, loads, now_ns)
            self._wake_for(pool, now_ns)
        if self._ahead:
            self._wake_by(self._ahead[0][0])

    def _contenders(self, pool: _Pool, now_ns: int) -> list[Contender]:
        """The queues that compete, in the order in which their first entries came, or begin.

        Of those that wait for their time, the first one of each key competes.
        """
        found: list[Contender] = []
        ahead: dict[QueueKey, tuple[int, Queue]] = {}
        for queue in list(pool.waiting):
            if not queue:
                del pool.waiting[queue]
                continue
            if (at_ns := self._begins.get(queue)) is not None:
                first = ahead.get(key := base_key(queue.key))
                if first is None or at_ns < first[0]:
                    ahead[key] = at_ns, queue
            else:
                found.append(self._contender(queue, is_due=True))
        found += [self._contender(queue, is_due=False) for _, queue in ahead.values()]
        return sorted(found, key=lambda each: each.order)

    def _contender(self, queue: Queue, *, is_due: bool) -> Contender:
        head = queue.retries[0][0] if queue.retries else queue.head()
        return Contender(queue, self._fleet.models[queue.model], head, (_begin_ns(head), head.sequence), is_due)

    def _is_free(self, partition: PartitionState, now_ns: int) -> bool:
        """True if a partition may be given a batch, and is not chosen for one already."""
        if partition.name in self._chosen or partition.group is None or partition.throttled or partition.overdue:
            return False
        return not partition.batches or partition.opening_ns <= now_ns

    def _last_turn(self, partition: PartitionState) -> tuple[int, int]:
        return self._turns.get(partition.name, 0), partition.number

    def _needed(self, partition: PartitionState) -> Collection[str]:
        """The models of a partition that its next batches need."""
        chosen = self._chosen.get(partition.name)
        return () if chosen is None else (chosen.queue.model,)

    def _carry_out(
        self, contender: Contender, partition: PartitionState, view: PoolView, loads: InstanceLoads, now_ns: int
    ) -> None:
        """Move the first entries of a queue to that of a partition, which loads their model unless it holds it."""
        queue, model = contender.queue, contender.model
        is_cold = model.config.key not in partition.models
        if is_cold:
            leaving = view.leaving(partition, model)
            assert leaving is not None, "a policy chooses a partition that can load the model"
            loads.load_on(partition.name, model, leaving, now_ns)
            self.cold += 1
        else:
            self.warm += 1
        own = self._fleet.queues.of_host(model.config.key, partition, queue.batch_key)
        combines = model.config.policy.combines
        estimate = model.estimates.get(partition.kind)
        most = 1 if not combines else (model.config.max_batch if estimate is None else estimate.max_rows)
        if queue.retries:
            most = 0
            own.retry(queue.take_retry())
        else:
            _move(queue, own, most)
        chosen = self._chosen[partition.name] = ChosenPartition(partition, own, most, is_cold)
        if combines and most:
            self._open[queue.key] = chosen
        self._turn += 1
        self._turns[partition.name] = self._turn
        self._fleet.queues.forget_if_empty(queue)
        if not is_cold:
            assert partition.group is not None, "a partition that is free was ready"
            self._fleet.wakeups.notify(own, partition.group, now_ns)

    def _give_back(self, chosen: ChosenPartition, now_ns: int) -> None:
        """Let the entries that were to run on a partition compete again; without any, the model may be gone."""
        own = chosen.queue
        if not own:
            self._drop(chosen.partition)
            return
        model = self._fleet.models[own.model]
        base = self._fleet.queues.get(base_key(own.key))
        while own.retries:
            base.retry(own.take_retry())
        while own.live:
            _move(own, base, NO_WAITERS)
        self._fleet.queues.forget_if_empty(own)
        self._drop(chosen.partition)
        self.offer(base, model, now_ns)
        if not model.served:
            self._fleet.strand(model)

    def _drop(self, partition: PartitionState) -> None:
        chosen = self._chosen.pop(partition.name, None)
        if chosen is not None and self._open.get(key := base_key(chosen.queue.key)) is chosen:
            del self._open[key]

    def _wake_for(self, pool: _Pool, now_ns: int) -> None:
        """Assign again when the next partition may be given a batch."""
        if not pool.waiting:
            return
        times_ns = [
            each.opening_ns
            for each in self._fleet.partitions.values()
            if each.batches and each.opening_ns > now_ns and each.name not in self._chosen
        ]
        if times_ns:
            self._wake_by(min(times_ns))

    def _wake_by(self, at_ns: int) -> None:
        if self.wake_ns is None or at_ns < self.wake_ns:
            self.wake_ns = at_ns

    def _pool(self, model: ModelState) -> _Pool:
        config = model.config.instances
        assert config is not None, "only models with a policy are in a pool"
        pool = self._pools.get(config)
        if pool is None:
            pool = self._pools[config] = _Pool(config, self._fleet)
        return pool


def _new_policy(config: InstanceConfig, fleet: Fleet) -> InstancePolicy:
    match config.name:
        case InstanceRule.ROUND_ROBIN:
            return RoundRobin()
        case InstanceRule.BALANCE:
            return Balance()
        case InstanceRule.SRTF:
            return ShortestFirst()
        case InstanceRule.MLFQ:
            return MultilevelQueues(config.seed)
        case InstanceRule.EXCLUSIVE:
            return ExclusivePartitions(config, fleet)
        case InstanceRule.CFS_AFFINITY:
            return FairAffinity(config.off_affinity)
        case InstanceRule.HOME_HASH:
            return HomeHash()
        case InstanceRule.LOCALITY:
            raise AssertionError("models with locality are in no pool")


def _begin_ns(entry: Entry) -> int:
    """When an entry came, or when it may begin if it was sent ahead of its time."""
    return max(entry.enqueued_ns, entry.request.arrival.not_before_ns)


def _move(source: Queue, target: Queue, most: int) -> None:
    """Move the first entries of a queue that may share a batch, of at most `most` rows and at least one."""
    for entry in source.take(most):
        requeue(entry, target.key)
        target.push(entry, _begin_ns(entry))
