"""Where work can run: the state of partitions and of the models on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.batcher.estimates.batch_limit import BatchLimit
from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import PartitionConfig, ScheduledModel

if TYPE_CHECKING:
    from sluice.batcher.fleet.shared_device import DeviceAccount
    from sluice.batcher.policies.base import BatchPolicy
    from sluice.batcher.queues.fair_queue import Queue
    from sluice.batcher.state.pipeline import PipelineState
    from sluice.batcher.state.pool import PartitionGroup
    from sluice.batcher.state.request import Batch

IN_FLIGHT = 2
"""Batches a worker may hold: one runs, the next is there when it ends, so that the device never waits for Python."""
RESTART_NS = 1_000_000_000
"""Assumed time until a lost worker is back."""
UNAVAILABLE_NS = 5_000_000_000
"""A model whose last worker has been gone for longer than this is unavailable, not about to come back."""
HAND_OFF_WEIGHT = 0.05
MAX_HAND_OFF_NS = 10_000_000
"""Hand-off times are learned up to this."""
TYPICAL_WEIGHT = 0.1
PEAK_DECAY = 0.9


class PartitionState:
    """One partition: its batches in flight and when it is expected to be free.

    `models` are those it may be given batches of; `group` are its equals. `hand_off_ns` is how long before it is free
    the next batch is closed, so that it is there in time: the configured time, or the longer one that hand-offs are
    seen to take. `ended_ns` is when the last batch ended. `opening_ns` and `listed_idle` belong to the group. `account` is
    there if it shares a device with an elastic one, or is that; `held` says that it is over its share and gets nothing.
    """

    __slots__ = (
        "_least_hand_off_ns",
        "account",
        "batches",
        "ended_ns",
        "free_at_ns",
        "group",
        "hand_off_ns",
        "held",
        "idle_since_ns",
        "kind",
        "listed_idle",
        "lost_ns",
        "models",
        "name",
        "number",
        "opening_ns",
        "price",
        "ready",
    )

    def __init__(self, number: int, config: PartitionConfig, hand_off_ns: int) -> None:
        self.number = number
        self.name = config.name
        self.kind = config.kind
        self.price = config.price
        self.models: frozenset[str] = frozenset()
        self.batches: list[Batch] = []
        self.ready = False
        self.lost_ns: int | None = None
        self.free_at_ns = 0
        self.idle_since_ns = 0
        self.opening_ns = 0
        self.listed_idle = False
        self.group: PartitionGroup | None = None
        self.ended_ns = 0
        self.held = False
        self.account: DeviceAccount | None = None
        self.hand_off_ns = self._least_hand_off_ns = hand_off_ns

    def start_ns(self, now_ns: int) -> int:
        """When a batch dispatched now would start."""
        if self.ready:
            return self.free_at_ns if self.free_at_ns > now_ns else now_ns
        return max(now_ns, (now_ns if self.lost_ns is None else self.lost_ns) + RESTART_NS)

    def is_gone(self, now_ns: int) -> bool:
        """Whether its worker has been away for too long to be about to come back."""
        return self.lost_ns is not None and now_ns - self.lost_ns >= UNAVAILABLE_NS

    def observe(self, dispatched_ns: int, started_ns: int, ended_ns: int, now_ns: int) -> int | None:
        """Learn what the way to the worker and back took, which is returned; None if the batch waited for another."""
        took_ns = None
        if dispatched_ns >= self.ended_ns:
            took_ns = (started_ns - dispatched_ns) + (now_ns - ended_ns)
            learned_ns = self.hand_off_ns + int(HAND_OFF_WEIGHT * (took_ns - self.hand_off_ns))
            self.hand_off_ns = min(max(learned_ns, self._least_hand_off_ns), MAX_HAND_OFF_NS)
        self.ended_ns = ended_ns
        return took_ns


class ModelState:
    """One model version: who holds it (`hosts` partitions in `groups`), how fast it is, how much of it is asked for.

    `outstanding` counts queued and running rows; `peak` is its maximum, decayed with every batch: how many rows may be
    expected together. `typical_rows` is the smoothed batch size, `quickest_ns` the least time of a row by itself,
    `last_ns` when the last batch was dispatched, or the model loaded. `load_ns` is how long loads take, by kind of
    partition, as far as some were seen.
    `limits` bound its batches by kind of partition, where larger ones have run out of memory.
    """

    __slots__ = (
        "batch_limits",
        "batches",
        "by_deadline",
        "config",
        "estimates",
        "groups",
        "hosts",
        "last_ns",
        "load_ns",
        "mixes_keys",
        "outstanding",
        "peak",
        "pipelines",
        "policy",
        "queues",
        "quickest_ns",
        "typical_rows",
    )

    def __init__(self, config: ScheduledModel, policy: BatchPolicy) -> None:
        self.config = config
        self.policy = policy
        self.by_deadline = policy.by_deadline
        self.mixes_keys = policy.mixes_keys
        self.groups: list[PartitionGroup] = []
        self.hosts = 0
        self.estimates: dict[str, LatencyEstimate] = {}
        self.batch_limits: dict[str, BatchLimit] = {}
        self.queues: dict[str, Queue] = {}
        self.pipelines: list[PipelineState] = []
        self.outstanding = 0
        self.peak: float = 0
        self.typical_rows = 1.0
        self.batches = 0
        self.quickest_ns = 0
        self.last_ns = 0
        self.load_ns: dict[str, int] = {}

    def queue_of(self, batch_key: str) -> Queue:
        """The queue for inputs of that batch key."""
        key = "" if self.mixes_keys else batch_key
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = self.policy.new_queue(self.config.key, key)
        return queue

    @property
    def partitions(self) -> list[PartitionState]:
        """The partitions that hold the model, in the order of their numbers; O(hosts)."""
        return sorted(
            (host for group in self.groups for host in group.partitions.values()), key=lambda host: host.number
        )

    @property
    def served(self) -> bool:
        """Whether a partition that is up holds the model."""
        return any(group.ready_count for group in self.groups)

    @property
    def whole(self) -> bool:
        """Whether there are partitions that hold the model, and all of them are up."""
        return bool(self.groups) and all(group.ready_count == len(group.partitions) for group in self.groups)

    def learned(self) -> None:
        """Note that an estimate changed."""
        self.quickest_ns = min([estimate.service_ns(1) for estimate in self.estimates.values()])

    def ran_out_of_memory(self, kind: str, rows: int, now_ns: int) -> bool:
        """Note that a batch had no memory on a kind of partition; whether smaller ones are to be made there now."""
        limit = self.batch_limits.setdefault(kind, BatchLimit(self.config.max_batch))
        if not limit.ran_out(rows, now_ns):
            return False
        self._limit(kind, limit)
        return True

    def limits_held(self, now_ns: int) -> bool:
        """Make larger batches again where the limit has held for long enough; whether there are any."""
        held = [kind for kind, limit in self.batch_limits.items() if limit.held(now_ns)]
        for kind in held:
            self._limit(kind, self.batch_limits[kind])
            if self.batch_limits[kind].lapsed:
                del self.batch_limits[kind]
        return bool(held)

    def fits_elsewhere(self, rows: int, kind: str) -> bool:
        """Whether partitions of other kinds that are up hold the model, and may run a batch of so many rows."""
        return any(group.ready_count and group.kind != kind and rows <= self._room(group.kind) for group in self.groups)

    def is_left(self, queue: Queue, kind: str) -> bool:
        """Whether the first batch of a queue is left to other kinds, as it has no memory on this one."""
        rows = sum(entry.rows for entry in queue.retries[0]) if queue.retries else queue.head().rows
        return rows > self._room(kind) and self.fits_elsewhere(rows, kind)

    def _room(self, kind: str) -> int:
        limit = self.batch_limits.get(kind)
        return self.config.max_batch if limit is None else limit.room

    def _limit(self, kind: str, limit: BatchLimit) -> None:
        if (estimate := self.estimates.get(kind)) is not None:
            estimate.limit(limit.rows)
            self.outdated()

    def outdated(self) -> None:
        """Have everything that was made from the estimates be made anew."""
        for pipeline in self.pipelines:
            pipeline.stale = True
            for stage in pipeline.stages:
                if stage.model is self:
                    stage.follow(stage.rest)

    def row_ns(self, kind: str) -> int:
        """Time that a row takes of a partition of that kind, in batches as large as the policy makes them."""
        estimate = self.estimates[kind]
        return estimate.row_ns(min(self.policy.full_rows(estimate), self.config.max_batch))

    @property
    def spread_row_ns(self) -> float:
        """Time that a row takes of all partitions when each does as much as it can; there must be one."""
        rates = [len(group.partitions) / max(self.row_ns(group.kind), 1) for group in self.groups]
        return 1 / sum(rates) if rates else 0.0

    @property
    def usual_rows(self) -> int:
        """How many rows a batch has, going by the last ones."""
        return min(int(self.typical_rows + 0.5), self.config.max_batch) or 1

    def dispatched(self, rows: int) -> None:
        """Note the size of a batch."""
        self.peak = max(self.outstanding, self.peak * PEAK_DECAY)
        self.typical_rows += TYPICAL_WEIGHT * (rows - self.typical_rows)
        self.batches += 1

    def decay(self) -> None:
        """Let the corrections of all estimates fall back half-way."""
        for estimate in self.estimates.values():
            estimate.decay()
            self.learned()
        for pipeline in self.pipelines:
            pipeline.stale = True
