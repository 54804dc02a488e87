"""The fleet: the partitions, the models that they hold, and the queues of the models."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.fleet.partition_group import join, recount
from sluice.batcher.fleet.run_queue import WakeupQueue
from sluice.batcher.fleet.speed import forget_kind, outdate, set_estimate
from sluice.batcher.interface.config import ScheduledModel, SchedulerSpec
from sluice.batcher.interface.events import PartitionReady, PartitionResized
from sluice.batcher.policies.base import BatchPolicy
from sluice.batcher.policies.registry import select_policy
from sluice.batcher.queues.queue_table import QueueTable
from sluice.batcher.state import ModelState, PartitionGroup, PartitionState
from sluice.models.profiles.latency_table import LatencyTable


class Fleet:
    """Keeps partitions in groups of equals, and the estimates of models up to date.

    `queues` are those of all models, `policies` the batch policies by model key. `wakeups` has the times to
    reconsider each group. `stranded` are the models without a running partition for which entries may wait.
    """

    def __init__(self, spec: SchedulerSpec) -> None:
        self.hand_off_ns = spec.limits.hand_off_ns
        self._limits = spec.limits
        self.models: dict[str, ModelState] = {}
        self.policies: dict[str, BatchPolicy] = {}
        self.queues = QueueTable()
        self.partitions = {
            config.name: PartitionState(
                number, config.name, config.kind, config.price, self.hand_off_ns, self.hand_off_ns
            )
            for number, config in enumerate(spec.partitions)
        }
        self.groups: list[PartitionGroup] = []
        self.wakeups = WakeupQueue()
        self.stranded: dict[ModelState, None] = {}
        self._tables: dict[tuple[str, str], LatencyTable] = {}
        self._next_group = 0
        for model in spec.models:
            self.add(model)

    def add(self, config: ScheduledModel) -> None:
        """Add a model that no partition holds yet."""
        assert config.key not in self.models, f"there is a model {config.key} already"
        policy = self.policies[config.key] = select_policy(config.policy, self._limits)
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
        for known in [each for each in self._tables if each[0] == key]:
            del self._tables[known]

    # -- partitions

    def ready(self, event: PartitionReady) -> None:
        """Record that a partition's worker is up with these models."""
        partition = self.partitions[event.partition]
        partition.ready = True
        partition.lost_ns = None
        for key, table in event.tables.items():
            self.learn(key, partition.kind, table)
        if partition.group is not None and partition.models == event.tables.keys():
            recount(partition.group)
            self.wakeups.run_queues[partition.group].partition_changed(partition)
            self.touch(partition.models)
        else:
            self.move(partition, frozenset(event.tables))

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

    def lost(self, name: str, now_ns: int) -> None:
        """Record that a partition's worker is gone; a separate event follows for each of its batches."""
        partition = self.partitions[name]
        if partition.ready or partition.lost_ns is None:  # not after a failed restart
            partition.lost_ns = now_ns
        partition.ready = False
        if partition.group is not None:
            recount(partition.group)
        self.touch(partition.models)

    def move(self, partition: PartitionState, models: frozenset[str]) -> None:
        """Move a partition to the group of its equals for these models."""
        old, before = partition.group, partition.models
        partition.models = models
        kind, price = partition.kind, partition.price
        group = next(
            (each for each in self.groups if (each.kind, each.price, each.models) == (kind, price, models)), None
        )
        if group is None and old is not None and self._change_models(old, partition):
            self._holders_changed(old, before ^ models)
            return
        if old is not None:
            del old.partitions[partition.number]
            recount(old)
            if not old.partitions:
                self.groups.remove(old)
                self.wakeups.remove(old)
        if group is None or not group.partitions:
            group = PartitionGroup(self._next_group, kind, models, price)
            self._next_group += 1
            self.groups.append(group)
            self.wakeups.add(group)
        partition.group = group
        group.partitions[partition.number] = partition
        join(group, partition)
        self._holders_changed(group, before | models)

    def _change_models(self, group: PartitionGroup, partition: PartitionState) -> bool:
        """Give a group the new models of its only partition; promised work stays promised.

        False if the group has other partitions, or the kind or price of its partition has changed.
        """
        if (group.only, group.kind, group.price) != (partition, partition.kind, partition.price):
            return False
        if group.ready_count != partition.ready:
            return False
        self.wakeups.run_queues[group].forget(group.models - partition.models)
        group.models = partition.models
        return True

    def _holders_changed(self, group: PartitionGroup, keys: frozenset[str]) -> None:
        """Record that other groups hold some models, and offer the queues of the models of `group` to it."""
        run_queue = self.wakeups.run_queues[group]
        for key in sorted(keys):
            model = self.models[key]
            model.groups = [each for each in self.groups if key in each.models]
            if key in group.models:
                for queue in self.queues.of(model):
                    run_queue.notify(queue)
        self.touch(keys)

    # -- models

    def learn(self, key: str, kind: str, table: LatencyTable) -> None:
        """Record a latency table; of two tables for a kind the faster cells count, since noise only adds time."""
        model = self.models[key]
        known = self._tables.get((key, kind))
        if known is not None:
            if [size for size, _ in known.cells] == [size for size, _ in table.cells]:
                faster = (min(a, b) for a, b in zip(known.cells, table.cells, strict=True))
                table = LatencyTable(tuple(faster))
            if table == known and kind in model.estimates:
                return
        self._tables[key, kind] = table
        set_estimate(model, kind, LatencyEstimate(table, model.config.max_batch, self.hand_off_ns))

    def _foresee(self, model: ModelState, kind: str) -> None:
        """Use the latency table of a model's footprint until a partition of that kind has held the model."""
        known = model.config.footprints.get(kind)
        if known is not None and known.table is not None and kind not in model.estimates:
            set_estimate(model, kind, LatencyEstimate(known.table, model.config.max_batch, self.hand_off_ns))

    def touch(self, keys: Iterable[str]) -> None:
        """Record that the partitions or pipelines of some models have changed."""
        models = [self.models[key] for key in sorted(keys)]
        self.stranded.update((model, None) for model in models if self.queues.has_work(model) and not model.served)
        for pipeline in dict.fromkeys(pipeline for model in models for pipeline in model.pipelines):
            outdate(pipeline)
            pipeline.degraded = any(
                stage.model is not None and not stage.model.fully_served for stage in pipeline.stages
            )

    def strand(self, model: ModelState) -> None:
        """Record that entries wait for a model that no running partition holds."""
        self.stranded[model] = None

    def rescue(self, model: ModelState) -> None:
        """Record that a model is served again, or has no waiting entries."""
        del self.stranded[model]


def new_model(config: ScheduledModel, policy: BatchPolicy) -> ModelState:
    """The state of a new model."""
    return ModelState(config, policy.by_deadline, policy.mixes_keys, policy.full_rows)
