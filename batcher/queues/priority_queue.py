"""The queue of Triton's dynamic batcher: levels of priority, each of them first come, first served, and bounded."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import attrgetter

from sluice.batcher.interface.config import PriorityLevels
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.queues.progress import batch_key_for
from sluice.batcher.queues.queue import Queue
from sluice.batcher.queues.response_order import ResponseOrder
from sluice.batcher.state import Entry
from sluice.models.dynamic_batching import TimeoutAction
from sluice.models.units import NS_PER_US

_sequence = attrgetter("sequence")


class EntryRefusedError(Exception):
    """An entry may not wait: its level is full, or its timeout had already expired."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class _Level:
    """The entries of a level: the `fresh` ones, then the `delayed` ones, whose timeout has expired."""

    __slots__ = ("delayed", "fresh", "rows")

    def __init__(self) -> None:
        self.fresh: OrderedDict[int, Entry] = OrderedDict()
        self.delayed: OrderedDict[int, Entry] = OrderedDict()
        self.rows = 0

    def __len__(self) -> int:
        return len(self.fresh) + len(self.delayed)

    def __iter__(self) -> Iterator[Entry]:
        yield from self.fresh.values()
        yield from self.delayed.values()

    def add(self, entry: Entry) -> None:
        self.fresh[entry.sequence] = entry
        self.rows += entry.rows

    def remove(self, entry: Entry) -> None:
        del (self.delayed if entry.sequence in self.delayed else self.fresh)[entry.sequence]
        self.rows -= entry.rows

    def delay(self, entry: Entry) -> None:
        del self.fresh[entry.sequence]
        self.delayed[entry.sequence] = entry

    def last(self) -> Entry:
        entries = self.delayed or self.fresh
        return entries[next(reversed(entries))]


class PriorityQueue(Queue):
    """All entries of a model, of any pipeline and batch key, level by level from 1 on.

    Entries with different batch keys do not share a batch, and keep their order. `response_order` holds back the
    answers of batches that overtake others; it is None unless ordering is configured. `_numbers` has the numbers of the
    levels with entries, ascending, and `_keys` the batch keys that are not empty, by sequence number of the entry.
    """

    __slots__ = ("_config", "_keys", "_levels", "_numbers", "response_order")

    def __init__(self, model: str, config: PriorityLevels, *, preserve_ordering: bool, batch_key: str = "") -> None:
        super().__init__(model, batch_key)
        self.response_order = ResponseOrder() if preserve_ordering else None
        self._config = config
        self._levels: dict[int, _Level] = {}
        self._numbers: list[int] = []
        self._keys: dict[int, str] = {}

    def admit(self, entry: Entry, now_ns: int) -> tuple[int | None, int | None]:
        """The time at which a new entry expires, and the time from which it waits behind the others of its level.

        Raises EntryRefusedError if the level is full or the timeout has expired. An entry whose pipeline evicts,
        or whose cost is limited, may wait all the same.
        """
        expires_ns, delay_ns = self._limits_ns(entry, now_ns)
        if not entry.request.pipeline.evicts and entry.request.arrival.max_cost is None:
            number = self._number(entry)
            limit = self._config.policy_of(number).max_queue_size
            level = self._levels.get(number)
            if limit and level is not None and len(level) >= limit:
                entry.queued = False
                waiting = "1 request waits" if len(level) == 1 else f"{len(level)} requests wait"
                where = f"at level {number} " if number else ""
                reason = f"{waiting} {where}for model {self.model}"
                raise EntryRefusedError(Outcome.REJECTED_QUEUE_FULL, reason)
            if expires_ns is not None and expires_ns <= now_ns:
                entry.queued = False
                raise EntryRefusedError(Outcome.EVICTED_DEADLINE, "")
        return expires_ns, delay_ns

    def _limits_ns(self, entry: Entry, now_ns: int) -> tuple[int | None, int | None]:
        """The times of `admit`.

        The level's timeout starts now. The request's own timeout is absolute; it replaces the level's if shorter and
        override is allowed, otherwise both apply.
        """
        policy = self._config.policy_of(self._number(entry))
        own_ns = entry.request.arrival.expires_ns or None
        if not policy.default_timeout_us:
            return own_ns, None
        policy_ns = now_ns + policy.default_timeout_us * NS_PER_US
        if own_ns is not None and own_ns < policy_ns and policy.allow_timeout_override:
            policy_ns, own_ns = own_ns, None
        if policy.timeout_action is TimeoutAction.DELAY:
            return own_ns, policy_ns
        return policy_ns if own_ns is None else min(policy_ns, own_ns), None

    def push(self, entry: Entry, order_ns: int) -> bool:
        """Add an entry; False if it is the last one and may share a batch with the entry before it."""
        last = self._last()
        number = self._number(entry)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level()
            insort(self._numbers, number)
        level.add(entry)
        self.rows += entry.rows
        self.live += 1
        if key := _batch_key(entry):
            self._keys[entry.sequence] = key
        is_last = number == self._numbers[-1] and level.last() is entry
        return not is_last or last is None or self._keys.get(last.sequence, "") != key

    def delay(self, entry: Entry) -> None:
        """Move an entry behind the others of its level."""
        self._levels[self._number(entry)].delay(entry)

    def discard(self, entry: Entry) -> None:
        """Remove one waiting entry."""
        if entry.retry_group is not None:
            super().discard(entry)
            return
        entry.queued = False
        number = self._number(entry)
        level = self._levels[number]
        level.remove(entry)
        if not level:
            del self._levels[number]
            self._numbers.remove(number)
        self._keys.pop(entry.sequence, None)
        self.rows -= entry.rows
        self.live -= 1

    def head(self) -> Entry:
        """The first entry; the queue must hold one."""
        return next(self.entries())

    def entries(self) -> Iterator[Entry]:
        """The entries in order; the queue must not change meanwhile."""
        for number in self._numbers:
            yield from self._levels[number]

    def companions(self, like: Entry | None = None) -> Iterator[Entry]:
        """The leading entries with the batch key of `like`, or of the first entry without `like`."""
        key = None if like is None else _batch_key(like)
        for entry in self.entries():
            own = self._keys.get(entry.sequence, "")
            if key is None:
                key = own
            elif own != key:
                return
            yield entry

    def take(self, max_rows: int, from_ns: int = 0) -> list[Entry]:
        """Remove the first entries of one batch key, of at most `max_rows` rows; at least one entry if there is any."""
        taken = self._take_in_order(max_rows)
        self.remove(taken)
        return taken

    def _take_in_order(self, max_rows: int) -> list[Entry]:
        taken: list[Entry] = []
        rows = 0
        for entry in self.companions():
            rows += entry.rows
            if taken and rows > max_rows:
                break
            taken.append(entry)
        return taken

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove entries that run now, in this order."""
        for entry in entries:
            self.discard(entry)
        if self.response_order is not None:
            self.response_order.add(entries)

    def _number(self, entry: Entry) -> int:
        return self._config.level_of(entry.request.arrival.priority)

    def _last(self) -> Entry | None:
        if not self._numbers:
            return None
        return self._levels[self._numbers[-1]].last()


def _batch_key(entry: Entry) -> str:
    return batch_key_for(entry.request, entry.request.pipeline.stages[entry.stage])
