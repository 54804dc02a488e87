"""Competition: the rows of a stage that asks for it run on other partitions as well, and the first answer counts.

Copies that are made after a percentile of the batch times are hedged requests ("The Tail at Scale", CACM 2013).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from sluice.batcher.dispatch.copies import copied, is_superseded, live_copies, mark_copied
from sluice.batcher.estimates.recent_times import RecentTimes
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.member_table import first_free, is_idle
from sluice.batcher.instances.pools import Instances
from sluice.batcher.interface.config import CompeteConfig
from sluice.batcher.places.costs import most_cost
from sluice.batcher.state import Batch, Entry, ModelState, PartitionState

COMPACT = 64
"""Least number of batches that wait for their copies at which those that have ended are dropped."""


class Competition:
    """Says when the rows of a batch run again, and where.

    A copy runs on an idle partition for which nothing is planned and that `instances` have not chosen for a batch, at
    once, so that it takes no time from others. Where too few partitions are idle, the batch has fewer copies; `unmade`
    counts those that are missing. A request with a limited cost has copies only if all of them are within its limit
    even on the dearest partitions.

    Times of batches are kept only for models whose stages ask for a percentile, by model key and kind of partition.
    """

    __slots__ = ("_compact_above", "_due", "_fleet", "_instances", "_times", "unmade")

    def __init__(self, fleet: Fleet, instances: Instances) -> None:
        self._fleet = fleet
        self._instances = instances
        self._due: list[tuple[int, int, Batch, CompeteConfig]] = []
        self._compact_above = COMPACT
        self._times: dict[tuple[str, str], RecentTimes] = {}
        self.unmade = 0

    def watch(self, batch: Batch, config: CompeteConfig, starts_ns: int) -> None:
        """Have the rows of a batch run again when it is time; the batch is expected to start at `starts_ns`."""
        at_ns = batch.dispatched_ns + config.after_ns
        if config.percentile:
            at_ns = starts_ns + batch.partition.hand_off_ns + batch.way_ns + self._usual_ns(batch, config)
        due = self._due
        if len(due) > self._compact_above:
            due[:] = [item for item in due if _goes_on(item[2])]
            heapify(due)
            self._compact_above = max(COMPACT, 2 * len(due))
        heappush(due, (at_ns, batch.identity, batch, config))

    def _usual_ns(self, batch: Batch, config: CompeteConfig) -> int:
        """The percentile of the time of such batches; that which most stay below while too few were seen."""
        model = self._model(batch)
        times = self._times.setdefault((model.config.key, batch.kind), RecentTimes())
        factor = times.quantile(config.percentile / 100)
        estimate = model.estimates[batch.kind]
        return estimate.service_ns(batch.rows) if factor is None else int(factor * estimate.profile_ns(batch.rows))

    def ran(self, batch: Batch, took_ns: int) -> None:
        """Record how long a batch took."""
        times = self._times.get((batch.queue_key[0], batch.kind))
        estimate = self._model(batch).estimates.get(batch.kind)
        if times is not None and estimate is not None:
            times.add(took_ns / estimate.profile_ns(batch.rows))

    @property
    def learns(self) -> bool:
        """True if `ran` is to be called."""
        return bool(self._times)

    @property
    def next_ns(self) -> int | None:
        """When the next batch is due; None without one."""
        due = self._due
        while due and not _goes_on(due[0][2]):
            heappop(due)
        return due[0][0] if due else None

    def due(self, now_ns: int) -> Iterator[tuple[Batch, CompeteConfig]]:
        """The batches whose rows are to run again now."""
        due = self._due
        while due and due[0][0] <= now_ns:
            _, _, batch, config = heappop(due)
            if _goes_on(batch):
                yield batch, config

    def copy(self, batch: Batch, config: CompeteConfig, now_ns: int) -> tuple[PartitionState, list[Entry]] | None:
        """The partition for one further copy of a batch, and its entries; None if there is to be none, or no partition.

        O(groups of its model).
        """
        entries = [entry for entry in batch.entries if _is_wanted(entry, batch, config)]
        if not entries:
            return None
        found = self._idle_host(batch, sum([entry.rows for entry in entries]), now_ns)
        if found is None:
            self.unmade += config.copies - min([len(live_copies(entry)) for entry in entries])
            return None
        done_ns, host = found
        in_time = [entry for entry in entries if done_ns <= entry.stage_deadline_ns]
        if not in_time:
            return None
        mark_copied(batch)
        return host, [copied(entry, now_ns) for entry in in_time]

    def _idle_host(self, batch: Batch, rows: int, now_ns: int) -> tuple[int, PartitionState] | None:
        """The idle partition that is expected to be done with these rows first, and when."""
        model = self._model(batch)
        only = self._fleet.queues.only(batch.queue_key)
        best: tuple[int, float, int, PartitionState] | None = None
        for group in model.groups:
            estimate = model.estimates[group.kind]
            if rows > estimate.max_rows or only not in (None, (group.kind, group.price)):
                continue
            host = first_free(group, now_ns, self._has_nothing_to_do)
            if host is None:
                continue
            done_ns = now_ns + host.hand_off_ns + host.way_ns(model, rows) + estimate.expected_ns(rows)
            if best is None or (done_ns, host.price, host.number) < best[:3]:
                best = done_ns, host.price, host.number, host
        return None if best is None else (best[0], best[3])

    def _has_nothing_to_do(self, partition: PartitionState, now_ns: int) -> bool:
        return is_idle(partition, now_ns) and not self._instances.has_chosen(partition)

    def forget(self, model: str) -> None:
        """Forget a model that is gone."""
        for key in [key for key in self._times if key[0] == model]:
            del self._times[key]

    def _model(self, batch: Batch) -> ModelState:
        return self._fleet.models[batch.queue_key[0]]


def _goes_on(batch: Batch) -> bool:
    """True if a batch has not ended."""
    return bool(batch.entries) and batch.entries[0].batch is batch


def _is_wanted(entry: Entry, batch: Batch, config: CompeteConfig) -> bool:
    """True if an entry of a batch is to have a further copy.

    Not one whose worker was lost while it ran: if it is the cause, it would take the next worker along.
    """
    request = entry.request
    if request.settled or entry.batch is not batch or is_superseded(entry) or entry.lost_once:
        return False
    if len(live_copies(entry)) >= config.copies:
        return False
    max_cost = request.arrival.max_cost
    return max_cost is None or most_cost(request.pipeline, request.rows) <= max_cost
