"""The fleet: partitions, the models they hold, and what is known of the models' speed."""

from collections.abc import Iterable

from batcher.config import ModelConfig, SchedulerSpec
from batcher.estimate import LatencyEstimate
from batcher.events import PartitionReady
from batcher.lifecycle import Entry
from batcher.placement import UNAVAILABLE_NS, ModelState, PartitionState
from batcher.policy.select import select_policy
from batcher.pool import Pool
from models.profile import LatencyTable


class Fleet:
    """Keeps partitions in pools of equals, and the estimates of models up to date.

    `unserved` are the models that no partition that is up holds.
    """

    def __init__(self, spec: SchedulerSpec) -> None:
        self.hand_off_ns = spec.limits.hand_off_ns
        self._limits = spec.limits
        self.models: dict[str, ModelState] = {}
        self.partitions = {
            config.name: PartitionState(number, config, self.hand_off_ns)
            for number, config in enumerate(spec.partitions)
        }
        self.pools: list[Pool] = []
        self.unserved: list[ModelState] = []
        self._tables: dict[tuple[str, str], LatencyTable] = {}
        self._next_pool = 0
        for model in spec.models:
            self.add(model)

    def add(self, config: ModelConfig) -> None:
        """Know one more model, which no partition holds yet."""
        assert config.key not in self.models, f"there is a model {config.key} already"
        self.models[config.key] = ModelState(config, select_policy(config.policy, self._limits))
        self.unserved.append(self.models[config.key])

    def forget(self, key: str) -> None:
        """Know a model no more that no partition holds and nothing waits for."""
        del self.models[key]
        for known in [each for each in self._tables if each[0] == key]:
            del self._tables[known]
        self.touch(())

    def ready(self, event: PartitionReady, now_ns: int) -> PartitionState:
        """A partition's worker is up with these models."""
        partition = self.partitions[event.partition]
        partition.ready = True
        partition.lost_ns = None
        partition.idle_since_ns = now_ns
        for key, table in event.tables.items():
            self.learn(key, partition.kind, table)
        if partition.pool is not None and partition.models == event.tables.keys():
            partition.pool.recount()
            partition.pool.changed(partition)
            self.touch(partition.models)
        else:
            self.move(partition, frozenset(event.tables))
        return partition

    def lost(self, name: str, now_ns: int) -> PartitionState:
        """A partition's worker is gone; its batches fail one by one in events of their own."""
        partition = self.partitions[name]
        if partition.ready or partition.lost_ns is None:  # not when another start of it failed
            partition.lost_ns = now_ns
        partition.ready = False
        if partition.pool is not None:
            partition.pool.recount()
        if partition.batches:
            partition.batches[0].suspect = True
        self.touch(partition.models)
        return partition

    def abandoned(self, now_ns: int) -> tuple[list[Entry], int | None]:
        """What waits for models whose workers have been gone for too long, and when to look again at the others."""
        entries: list[Entry] = []
        again: list[int] = []
        for model in self.unserved:
            gone_ns = max(
                (now_ns if host.lost_ns is None else host.lost_ns for host in model.partitions),
                default=now_ns - UNAVAILABLE_NS,
            )
            for queue in filter(None, model.queues.values()):
                if now_ns - gone_ns < UNAVAILABLE_NS:
                    again.append(gone_ns + UNAVAILABLE_NS)
                    break
                entries += queue.entries()
                entries += (entry for group in queue.retries for entry in group)
        return entries, min(again, default=None)

    def move(self, partition: PartitionState, models: frozenset[str]) -> None:
        """Have a partition take batches of these models from now on."""
        old, before = partition.pool, partition.models
        partition.models = models
        partition.listed_idle = False
        if old is not None:
            del old.partitions[partition.number]
            old.recount()
            if not old.partitions:
                self.pools.remove(old)
        pool = next((each for each in self.pools if each.holds(partition.kind, partition.price, models)), None)
        if pool is None:
            pool = Pool(self._next_pool, partition.kind, models, partition.price)
            self._next_pool += 1
            self.pools.append(pool)
        partition.pool = pool
        pool.partitions[partition.number] = partition
        pool.recount()
        pool.changed(partition)
        for key in sorted(before | models):
            model = self.models[key]
            model.pools = [each for each in self.pools if key in each.models]
            model.hosts = sum(len(each.partitions) for each in model.pools)
            if key in models:
                for queue in model.queues.values():
                    pool.announce(queue)
        self.touch(before | models)

    def learn(self, key: str, kind: str, table: LatencyTable) -> None:
        """Take in a table; of two for the same kind the faster cells count, since noise only ever slows."""
        model = self.models[key]
        known = self._tables.get((key, kind))
        if known is not None:
            if [size for size, _ in known.cells] == [size for size, _ in table.cells]:
                faster = (min(a, b) for a, b in zip(known.cells, table.cells, strict=True))
                table = LatencyTable(tuple(faster))
            if table == known:
                return
        self._tables[key, kind] = table
        model.estimates[kind] = LatencyEstimate(table, model.config.max_batch, self.hand_off_ns)
        model.learned()

    def touch(self, keys: Iterable[str]) -> None:
        """Take in that others hold some models than before, or that others need them."""
        self.unserved = [model for model in self.models.values() if not model.served]
        for pipeline in {pipeline for key in keys for pipeline in self.models[key].pipelines}:
            pipeline.stale = True
            pipeline.degraded = any(stage.model is not None and not stage.model.whole for stage in pipeline.stages)
