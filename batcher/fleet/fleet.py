"""The fleet: the partitions, the models that they hold, and the queues of the models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import lt

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.fleet.nodes import NodeTable
from sluice.batcher.fleet.partition_group import came_up, depart, join, went_down
from sluice.batcher.fleet.run_queue import WakeupQueue
from sluice.batcher.fleet.speed import forget_kind, outdate, outdate_pipelines, set_estimate
from sluice.batcher.interface.config import ScheduledModel, SchedulerSpec
from sluice.batcher.interface.events import LinkMeasured, PartitionReady, PartitionResized
from sluice.batcher.policies.base import BatchPolicy, LearningPolicy
from sluice.batcher.policies.registry import select_policy
from sluice.batcher.queues.queue_table import QueueTable
from sluice.batcher.state import LinkClass, ModelState, PartitionGroup, PartitionState
from sluice.models.profiles.latency_table import LatencyTable

_Equals = tuple[str, float, LinkClass, frozenset[str]]
"""(kind, price, class of links, models) that equal partitions have in common."""


class Fleet:
    """Keeps partitions in groups of equals, and the estimates of models up to date.

    `queues` are those of all models, `policies` the batch policies by model key, `learners` those of them that learn
    from the batches that have run, `nodes` the machines. `wakeups` has the times to reconsider each group. `removals`
    counts the groups that have gone, and `moved` has the partitions, by number, whose models have changed since it was
    cleared. `stranded` are the models without a partition that runs them, or was ordered to load them on demand, for
    which entries may wait.
    """

    def __init__(self, spec: SchedulerSpec) -> None:
        self.hand_off_ns = spec.limits.hand_off_ns
        self._limits = spec.limits
        self.models: dict[str, ModelState] = {}
        self.policies: dict[str, BatchPolicy] = {}
        self.learners: dict[str, LearningPolicy] = {}
        self.queues = QueueTable()
        self.partitions = {
            config.name: PartitionState(
                number, config.name, config.kind, config.price, self.hand_off_ns, self.hand_off_ns
            )
            for number, config in enumerate(spec.partitions)
        }
        for name in (slot for scaled in spec.scaling.classes for slot in scaled.slots):
            self.partitions[name].is_scaled = True
        self.groups: list[PartitionGroup] = []
        self.nodes = NodeTable(self.hand_off_ns)
        self.wakeups = WakeupQueue()
        self.stranded: dict[ModelState, None] = {}
        self._equals: dict[_Equals, PartitionGroup] = {}
        self._tables: dict[str, dict[str, LatencyTable]] = {}  # by kind of partition and model
        self._next_group = 0
        self.removals = 0
        self.moved: dict[int, PartitionState] = {}
        for model in spec.models:
            self.add(model)

    def add(self, config: ScheduledModel) -> None:
        """Add a model that no partition holds yet."""
        assert config.key not in self.models, f"there is a model {config.key} already"
        policy = self.policies[config.key] = select_policy(config.policy, self._limits)
        if isinstance(policy, LearningPolicy):
            self.learners[config.key] = policy
        model = self.models[config.key] = new_model(config, policy)
        self.queues.add(model, policy.new_queue)
        for kind in dict.fromkeys(partition.kind for partition in self.partitions.values()):
            self._foresee(model, kind)

    def forget(self, key: str) -> None:
        """Forget a model without partitions and waiting entries."""
        model = self.models.pop(key)
        self.stranded.pop(model, None)
        self.queues.remove(model)
        del self.policies[key]
        self.learners.pop(key, None)
        for tables in self._tables.values():
            tables.pop(key, None)

    # -- partitions

    def ready(self, event: PartitionReady) -> None:
        """Record that a partition's worker is up with these models."""
        partition = self.partitions[event.partition]
        was_up = partition.ready
        partition.ready = True
        partition.lost_ns = None
        partition.closed = False
        self.nodes.place(partition, event)
        kind = partition.kind
        known = self._tables.setdefault(kind, {})
        for key, table in event.tables.items():
            if table != known.get(key) or kind not in self.models[key].estimates:
                self.learn(key, kind, table)
        group = partition.group
        if group is not None and partition.models == event.tables.keys() and partition.link == group.link:
            if not was_up:
                came_up(group)
            _measure_ways(group, list(group.partitions.values()))
            self.wakeups.run_queues[group].partition_changed(partition)
            self.touch(partition.models)
        else:
            self.move(partition, frozenset(event.tables), was_up=was_up)

    def resized(self, event: PartitionResized) -> None:
        """Record the new kind of a partition; estimates of a kind without partitions are forgotten."""
        partition = self.partitions[event.partition]
        before = partition.kind
        partition.kind, partition.price = event.kind, event.price
        for key in sorted(event.tables.keys() & self.models.keys()):
            self.learn(key, event.kind, event.tables[key])
        if all(each.kind != before for each in self.partitions.values()):
            for model in self.models.values():
                forget_kind(model, before)
        for model in self.models.values():
            self._foresee(model, event.kind)
        self.move(partition, partition.models)

    def link_measured(self, event: LinkMeasured) -> tuple[bool, list[PartitionState]]:
        """Record how long the way to a node takes; O(partitions of its groups) where that changes.

        Returns whether that changes predictions, and the partitions that have other equals from now on.
        """
        node = self.nodes.measured(event)
        if node is None:
            return False, []
        moved: list[PartitionState] = []
        stay: dict[PartitionGroup, None] = {}
        for partition in node.partitions.values():
            if (group := partition.group) is None:
                continue
            if partition.link == group.link:
                stay[group] = None
            else:
                self.move(partition, partition.models)
                moved.append(partition)
        for group in stay:
            _measure_ways(group, list(group.partitions.values()))
            self._touch(list(group.hosted.values()))
        return bool(node.partitions), moved

    def lost(self, name: str, now_ns: int) -> None:
        """Record that a partition's worker is gone; a separate event follows for each of its batches."""
        partition = self.partitions[name]
        if partition.ready or partition.lost_ns is None:  # not after a failed restart
            partition.lost_ns = now_ns
        was_up = partition.ready
        partition.ready = partition.closed = False
        if partition.group is not None and was_up:
            went_down(partition.group, partition)
        self.touch(partition.models)

    def close(self, partition: PartitionState) -> None:
        """Give a partition no more batches and models; what it has it completes. Without a worker, none is expected."""
        partition.closed = partition.ready
        self.move(partition, frozenset())

    def open(self, partition: PartitionState, models: frozenset[str]) -> None:
        """Give batches of these models to a partition that was closed, and that holds them."""
        partition.closed = False
        self.move(partition, models)

    def move(self, partition: PartitionState, models: frozenset[str], *, was_up: bool | None = None) -> None:
        """Move a partition to the group of its equals for these models; O(models of both groups).

        Of a group that a further running partition joins, only the number of partitions has changed. `was_up` says
        whether it was up before, where that may differ.
        """
        old = partition.group
        if was_up is None:
            was_up = partition.ready
        partition.models = models
        self.moved[partition.number] = partition
        group = self._equals.get((partition.kind, partition.price, partition.link, models))
        if group is None and old is not None and was_up == partition.ready and self._change_models(old, partition):
            return
        if old is not None:
            del old.partitions[partition.number]
            depart(old, partition, was_up=was_up)
            _measure_ways(old, list(old.partitions.values()))
            if not old.partitions:
                self._remove(old)
        if group is None or not group.partitions:
            group, all_up = self._add_group(partition), False
        else:
            all_up = group.ready_count == len(group.partitions)
        partition.group = group
        group.partitions[partition.number] = partition
        join(group, partition)
        _measure_ways(group, (partition, group))
        if old is None and all_up and partition.ready:
            for model in group.hosted.values():
                outdate_pipelines(model)
        else:
            self._touch([*group.hosted.values(), *(() if old is None else old.hosted.values())])

    def _add_group(self, partition: PartitionState) -> PartitionGroup:
        """A new group for a partition, which is offered the queues of its models."""
        kind, price, models = partition.kind, partition.price, partition.models
        group = PartitionGroup(self._next_group, kind, models, price, partition.link)
        self._next_group += 1
        self.groups.append(group)
        self._equals[kind, price, partition.link, models] = group
        self.wakeups.add(group)
        for key in sorted(models):
            self._hold(group, self.models[key])
        return group

    def _remove(self, group: PartitionGroup) -> None:
        """Remove a group without partitions."""
        self.groups.remove(group)
        self.removals += 1
        del self._equals[group.kind, group.price, group.link, group.models]
        self.wakeups.remove(group)
        for model in group.hosted.values():
            _drop_holder(model, group)

    def _change_models(self, group: PartitionGroup, partition: PartitionState) -> bool:
        """Give a group the new models of its only partition; what is planned for it stays.

        False if the group has other partitions, or the kind, price, link or way of its partition has changed.
        """
        if (group.only, group.kind, group.price) != (partition, partition.kind, partition.price):
            return False
        ways = partition.link, partition.round_trip_ns, partition.ns_per_byte
        if (group.link, group.round_trip_ns, group.ns_per_byte) != ways:
            return False
        models = partition.models
        gone = group.models - models
        changed = [self.models[key] for key in sorted(group.models ^ models)]
        self.wakeups.run_queues[group].forget(gone)
        del self._equals[group.kind, group.price, group.link, group.models]
        self._equals[group.kind, group.price, group.link, models] = group
        group.models = models
        for model in changed:
            if model.config.key in gone:
                del group.hosted[model.config.key]
                _drop_holder(model, group)
            else:
                self._hold(group, model)
        self._touch(changed)
        return True

    def _hold(self, group: PartitionGroup, model: ModelState) -> None:
        """Record that a group holds a model, and offer the group its queues."""
        group.hosted[model.config.key] = model
        model.groups = sorted((*model.groups, group), key=lambda each: each.number)
        run_queue = self.wakeups.run_queues[group]
        for queue in self.queues.of(model):
            run_queue.notify(queue)

    # -- models

    def learn(self, key: str, kind: str, table: LatencyTable) -> None:
        """Record a latency table; of two tables for a kind the faster cells count, since noise only adds time."""
        model, tables = self.models[key], self._tables.setdefault(kind, {})
        known = tables.get(key)
        if known is not None:
            table = _faster(known, table)
            if table is known and kind in model.estimates:
                return
        tables[key] = table
        set_estimate(model, kind, self._estimate(model, table))

    def _estimate(self, model: ModelState, table: LatencyTable) -> LatencyEstimate:
        """The estimate by a table; where batches are padded, it knows the sizes that they run with."""
        if model.run_sizes:
            table = LatencyTable(tuple([(size, table.latency_ns(size)) for size in model.run_sizes]))
        return LatencyEstimate(table, model.config.max_batch, self.hand_off_ns)

    def _foresee(self, model: ModelState, kind: str) -> None:
        """Use the latency table of a model's footprint until a partition of that kind has held the model."""
        known = model.config.footprints.get(kind)
        if known is not None and known.table is not None and kind not in model.estimates:
            set_estimate(model, kind, self._estimate(model, known.table))

    def touch(self, keys: Iterable[str]) -> None:
        """Record that the partitions or pipelines of some models have changed."""
        self._touch([self.models[key] for key in sorted(keys)])

    def _touch(self, models: Sequence[ModelState]) -> None:
        """As `touch`; takes O(models), and for each group whose partitions are not all up as much again."""
        self.stranded.update((model, None) for model in models if self.queues.has_work(model) and not model.served)
        for model in models:
            model.nearest_ns = min([group.way_ns(model, 1) for group in model.groups], default=0)
        impaired = [group for group in self.groups if group.ready_count < len(group.partitions)]
        for pipeline in dict.fromkeys(pipeline for model in models for pipeline in model.pipelines):
            outdate(pipeline)
            pipeline.degraded = any(
                not model.groups or any(model.config.key in group.models for group in impaired)
                for model in [stage.model for stage in pipeline.stages]
                if model is not None
            )

    def strand(self, model: ModelState) -> None:
        """Record that entries wait for a model that no running partition holds."""
        self.stranded[model] = None

    def rescue(self, model: ModelState) -> None:
        """Record that a model is served again or being loaded, or has no waiting entries."""
        del self.stranded[model]


def new_model(config: ScheduledModel, policy: BatchPolicy) -> ModelState:
    """The state of a new model."""
    by_deadline = policy.by_deadline and config.instances is None
    return ModelState(config, by_deadline, policy.mixes_keys, policy.full_rows, config.run_sizes)


def _measure_ways(group: PartitionGroup, among: Sequence[PartitionState | PartitionGroup]) -> None:
    """Predict with the slowest way `among` some."""
    group.round_trip_ns = max([each.round_trip_ns for each in among], default=0)
    group.ns_per_byte = max([each.ns_per_byte for each in among], default=0.0)


def _drop_holder(model: ModelState, group: PartitionGroup) -> None:
    """Record that a group no longer holds a model."""
    model.groups = [each for each in model.groups if each is not group]


def _faster(known: LatencyTable, table: LatencyTable) -> LatencyTable:
    """The faster cells of two tables, `known` itself if those are its own; `table` if it has other batch sizes."""
    sizes, known_ns = zip(*known.cells, strict=True)
    its_sizes, latencies_ns = zip(*table.cells, strict=True)
    if sizes != its_sizes:
        return table
    if not any(map(lt, latencies_ns, known_ns)):
        return known
    return LatencyTable(tuple(zip(sizes, map(min, known_ns, latencies_ns), strict=True)))
