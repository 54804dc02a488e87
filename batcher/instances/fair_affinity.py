"""Completely fair scheduling with affinity: models have equal time, and run where they are held.

As in the pool of N. Pemberton's Kernel as a Service: the virtual time of a model grows with the time of its batches,
several times as fast for a batch on a partition that does not hold it.
"""

from sluice.batcher.instances.base import Assignment, Contender, PoolView
from sluice.batcher.state import Entry, ModelState, PartitionState


class FairAffinity:
    """The model goes first that would have had the least virtual time after its batch.

    It is loaded on a further partition only if its work would wait for those that hold it for longer than for the load.
    One that had nothing to run begins with the virtual time of the others, so that it cannot save time up.
    """

    def __init__(self, off_affinity: float) -> None:
        self._off_affinity = off_affinity
        self._virtual_ns: dict[str, float] = {}
        self._least_ns = 0.0

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Nothing is learned."""

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The queue and the free partition with the least virtual time after the batch."""
        times_ns = self._times_ns(contenders)
        best: tuple[float, tuple[int, int]] | None = None
        found: Assignment | None = None
        for contender in contenders:
            partition = self._partition_for(contender, view) if contender.due else None
            if partition is None:
                continue
            key = contender.model.config.key
            factor = 1.0 if key in partition.models else self._off_affinity
            after_ns = times_ns[key] + factor * contender.batch_ns
            if best is None or (after_ns, contender.order) < best:
                best, found = (after_ns, contender.order), Assignment(contender, partition)
        if found is not None and best is not None:
            self._virtual_ns[found.contender.model.config.key] = best[0]
        return found

    def _times_ns(self, contenders: list[Contender]) -> dict[str, float]:
        """The virtual times of the models that have something to run; those of the others are dropped once behind."""
        keys = [contender.model.config.key for contender in contenders]
        times_ns = {key: max(self._virtual_ns.get(key, 0.0), self._least_ns) for key in keys}
        self._least_ns = min(times_ns.values())
        self._virtual_ns = {key: each for key, each in self._virtual_ns.items() if each > self._least_ns}
        self._virtual_ns |= times_ns
        return times_ns

    def _partition_for(self, contender: Contender, view: PoolView) -> PartitionState | None:
        """A free partition that holds the model, else one that can load it before those that hold it had time."""
        model = contender.model
        key = model.config.key
        if (held := next((each for each in view.free if key in each.models), None)) is not None:
            return held
        partition = view.first_free(model)
        if partition is None:
            return None
        holders = [each for each in view.partitions if key in each.models]
        if not holders:
            return partition
        soonest_ns = min(each.start_ns(view.now_ns) for each in holders) - view.now_ns
        behind = max(contender.queue.rows - contender.head.rows, 0) * model.quickest_ns // len(holders)
        return partition if soonest_ns + behind >= view.load_ns(partition, model) else None
