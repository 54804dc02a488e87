"""The fleet: partitions, the models they hold, and what is known of the models' speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import ScheduledModel, SchedulerSpec
from sluice.batcher.interface.events import PartitionReady, PartitionResized
from sluice.batcher.policies.registry import select_policy
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state.model import UNAVAILABLE_NS, ModelState, PartitionState
from sluice.batcher.state.pool import PartitionGroup
from sluice.batcher.state.request import Entry
from sluice.models.profiles.latency_table import LatencyTable

if TYPE_CHECKING:
    from sluice.batcher.residency.on_demand import OnDemandLoader


class Fleet:
    """Keeps partitions in pools of equals, and the estimates of models up to date.

    `stranded` are the models that no partition that is up holds, as far as something may wait for them.
    """

    def __init__(self, spec: SchedulerSpec) -> None:
        self.hand_off_ns = spec.limits.hand_off_ns
        self._limits = spec.limits
        self.models: dict[str, ModelState] = {}
        self.partitions = {
            config.name: PartitionState(number, config, self.hand_off_ns)
            for number, config in enumerate(spec.partitions)
        }
        self.pools: list[PartitionGroup] = []
        self.stranded: dict[ModelState, None] = {}
        self._tables: dict[tuple[str, str], LatencyTable] = {}
        self._next_pool = 0
        for model in spec.models:
            self.add(model)

    def add(self, config: ScheduledModel) -> None:
        """Know one more model, which no partition holds yet."""
        assert config.key not in self.models, f"there is a model {config.key} already"
        model = self.models[config.key] = ModelState(config, select_policy(config.policy, self._limits))
        for kind in {partition.kind for partition in self.partitions.values()}:
            self._foresee(model, kind)

    def forget(self, key: str) -> None:
        """Know a model no more that no partition holds and nothing waits for."""
        self.stranded.pop(self.models.pop(key), None)
        for known in [each for each in self._tables if each[0] == key]:
            del self._tables[known]

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

    def resized(self, event: PartitionResized) -> None:
        """A partition is of another kind from now on; corrections of a kind that there is no more are forgotten."""
        partition = self.partitions[event.partition]
        before = partition.kind
        partition.kind, partition.price = event.kind, event.price
        for key in sorted(event.tables.keys() & self.models.keys()):
            self.learn(key, event.kind, event.tables[key])
        if all(each.kind != before for each in self.partitions.values()):
            for model in self.models.values():
                if model.estimates.pop(before, None) is not None and model.estimates:
                    model.learned()
        for model in self.models.values():
            self._foresee(model, event.kind)
        self.move(partition, partition.models)

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

    def abandoned(self, now_ns: int, cold_starts: OnDemandLoader | None) -> tuple[list[tuple[Entry, str]], int | None]:
        """What waits for models whose workers have been gone for too long, and why; when to look again at the others.

        With `cold_starts` it is what waits for models that cannot be loaded, and is late if that may pass.
        """
        found: list[tuple[Entry, str]] = []
        again: list[int] = []
        for model in list(self.stranded):
            if model.served or not any(model.queues.values()):
                del self.stranded[model]
                continue
            if cold_starts is not None:
                if (refusal := cold_starts.refusal(model, now_ns)) is not None:
                    reason = f"model {model.config.key} is not loaded: {refusal.reason}"
                    waiting = (entry for queue in model.queues.values() for entry in _waiting(queue))
                    late = (each for each in waiting if not refusal.passing or each.request.deadline_ns <= now_ns)
                    found += ((entry, reason) for entry in late)
                continue
            gone_ns = max(
                (now_ns if host.lost_ns is None else host.lost_ns for host in model.partitions),
                default=now_ns - UNAVAILABLE_NS,
            )
            for queue in filter(None, model.queues.values()):
                if now_ns - gone_ns < UNAVAILABLE_NS:
                    again.append(gone_ns + UNAVAILABLE_NS)
                    break
                reason = f"no partition holds model {model.config.key} any more"
                found += ((entry, reason) for entry in _waiting(queue))
        return found, min(again, default=None)

    def move(self, partition: PartitionState, models: frozenset[str]) -> None:
        """Have a partition take batches of these models from now on."""
        old, before = partition.pool, partition.models
        partition.models = models
        pool = next((each for each in self.pools if each.holds(partition.kind, partition.price, models)), None)
        if pool is None and old is not None and old.become(partition, models):
            self._holders_changed(old, before ^ models)
            return
        partition.listed_idle = False
        if old is not None:
            del old.partitions[partition.number]
            old.recount()
            if not old.partitions:
                self.pools.remove(old)
        if pool is None or not pool.partitions:
            pool = PartitionGroup(self._next_pool, partition.kind, models, partition.price)
            self._next_pool += 1
            self.pools.append(pool)
        partition.pool = pool
        pool.partitions[partition.number] = partition
        pool.recount()
        pool.changed(partition)
        self._holders_changed(pool, before | models)

    def _holders_changed(self, pool: PartitionGroup, keys: frozenset[str]) -> None:
        """Other pools than before hold some models; what waits for those that `pool` holds is new to it."""
        for key in sorted(keys):
            model = self.models[key]
            model.pools = [each for each in self.pools if key in each.models]
            model.hosts = sum(len(each.partitions) for each in model.pools)
            if key in pool.models:
                for queue in model.queues.values():
                    pool.announce(queue)
        self.touch(keys)

    def learn(self, key: str, kind: str, table: LatencyTable) -> None:
        """Take in a table; of two for the same kind the faster cells count, since noise only ever slows."""
        model = self.models[key]
        known = self._tables.get((key, kind))
        if known is not None:
            if [size for size, _ in known.cells] == [size for size, _ in table.cells]:
                faster = (min(a, b) for a, b in zip(known.cells, table.cells, strict=True))
                table = LatencyTable(tuple(faster))
            if table == known and kind in model.estimates:
                return
        self._tables[key, kind] = table
        self._estimate(model, kind, table)

    def _foresee(self, model: ModelState, kind: str) -> None:
        """Take in what is known beforehand of the speed of a model that no partition of a kind has held yet."""
        known = model.config.footprints.get(kind)
        if known is not None and known.table is not None and kind not in model.estimates:
            self._estimate(model, kind, known.table)

    def _estimate(self, model: ModelState, kind: str, table: LatencyTable) -> None:
        estimate = model.estimates[kind] = LatencyEstimate(table, model.config.max_batch, self.hand_off_ns)
        if (ceiling := model.ceilings.get(kind)) is not None:
            estimate.limit(ceiling.rows)
        model.learned()

    def touch(self, keys: Iterable[str]) -> None:
        """Take in that others hold some models than before, or that others need them."""
        models = [self.models[key] for key in keys]
        self.stranded.update((model, None) for model in models if any(model.queues.values()) and not model.served)
        for pipeline in {pipeline for model in models for pipeline in model.pipelines}:
            pipeline.stale = True
            pipeline.degraded = any(stage.model is not None and not stage.model.whole for stage in pipeline.stages)


def _waiting(queue: Queue) -> Iterator[Entry]:
    """What waits in a queue, to be retried or not."""
    yield from queue.entries()
    yield from (entry for group in queue.retries for entry in group)
