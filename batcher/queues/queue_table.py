"""The queues of all models, by model key and batch key."""

from collections.abc import Callable, Collection

from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import ModelState, PartitionState, QueueKey

NewQueue = Callable[[str, str], Queue]
"""Makes an empty queue of (model key, batch key)."""
NOWHERE = ("", -1.0)
"""The (kind, price) of no partition: what is bound to one partition waits here for that partition's queue."""
HOST = "\0"
"""It separates a batch key from the name of a partition: neither has it, while names of tensors may have any other."""


class QueueTable:
    """Keeps the queues of each model: one for each batch key with waiting entries.

    `default` has the queue of each model for the batch key "". A model whose inputs all share batches has no other,
    except those that are bound to partitions of a kind and price, whose batch keys end with that, and those of single
    partitions: of sequences, and of models whose instances a policy chooses. Requests to the latter that were sent
    ahead of their time have queues of their own until then.
    """

    __slots__ = ("_bound", "_bounds", "_chosen", "_hosts", "_new", "by_model", "default")

    def __init__(self) -> None:
        self.default: dict[ModelState, Queue] = {}
        self.by_model: dict[str, dict[str, Queue]] = {}
        self._new: dict[str, NewQueue] = {}
        self._bounds: dict[str, tuple[str, float]] = {}
        self._bound: dict[Queue, None] = {}
        self._hosts: dict[str, PartitionState] = {}
        self._chosen: set[str] = set()

    def add(self, model: ModelState, new_queue: NewQueue) -> None:
        """Add a model without entries."""
        key = model.config.key
        self.default[model] = new_queue(key, "")
        if model.config.sequences is not None:
            self.default[model].only = NOWHERE
        if model.config.instances is not None:
            self.default[model].only = NOWHERE
            self._chosen.add(key)
        self.by_model[key] = {"": self.default[model]}
        self._new[key] = new_queue

    def remove(self, model: ModelState) -> None:
        """Drop a model without entries."""
        key = model.config.key
        del self.default[model], self.by_model[key], self._new[key]
        self._chosen.discard(key)

    def get(self, key: QueueKey) -> Queue:
        """The queue of a key; a new one if there is none."""
        model, batch_key = key
        queues = self.by_model[model]
        queue = queues.get(batch_key)
        if queue is None:
            queue = queues[batch_key] = self._new[model](model, batch_key)
            queue.only, queue.host = self.only(key), self._hosts.get(batch_key[batch_key.rfind(HOST) :])
            if queue.only is not None:
                self._bound[queue] = None
            elif queue.host is None and model in self._chosen:
                queue.only = NOWHERE
        return queue

    def bound(self, key: QueueKey, kind: str, price: float) -> Queue:
        """The queue of a key whose entries run only on partitions of a kind and price, since their cost is limited."""
        key = bound_key(key, kind, price)
        self._bounds[key[1].rpartition("@")[2]] = (kind, price)
        return self.get(key)

    def of_host(self, model: str, host: PartitionState, batch_key: str = "") -> Queue:
        """The queue of a model whose entries run on one partition only."""
        self._hosts[host_key(host)] = host
        return self.get((model, batch_key + host_key(host)))

    def of_begin(self, key: QueueKey, begin_ns: int) -> Queue:
        """The queue of entries that were sent ahead of their time, and begin together."""
        return self.get((key[0], f"{key[1]}{HOST}+{begin_ns}"))

    def has_sequences(self, host: PartitionState) -> bool:
        """True if a partition has had slots of sequences."""
        return host_key(host) in self._hosts

    def only(self, key: QueueKey) -> tuple[str, float] | None:
        """The (kind, price) of the partitions that entries of a key may run on; None for all."""
        return self._bounds.get(key[1].rpartition("@")[2]) if "@" in key[1] else None

    def bound_queues(self) -> list[Queue]:
        """All queues whose entries may run only on some partitions."""
        return list(self._bound)

    def find(self, key: QueueKey) -> Queue | None:
        """The queue of a key; None if there is none."""
        return self.by_model[key[0]].get(key[1])

    def of(self, model: ModelState) -> Collection[Queue]:
        """All queues of a model."""
        return self.by_model[model.config.key].values()

    def has_work(self, model: ModelState) -> bool:
        """True if entries wait for a model."""
        return any(self.by_model[model.config.key].values())

    def forget_if_empty(self, queue: Queue) -> None:
        """Drop a queue of a batch key if it has no entries.

        Batch keys come from the shapes of requests: keeping a queue for every key ever seen would grow without bound.
        """
        if queue.batch_key and not queue:
            self.by_model[queue.model].pop(queue.batch_key, None)
            self._bound.pop(queue, None)


def bound_key(key: QueueKey, kind: str, price: float) -> QueueKey:
    """The key of the queue of entries that run only on partitions of a kind and price."""
    return (key[0], f"{key[1]}@{kind}/{price:g}")


def host_key(host: PartitionState) -> str:
    """The end of the batch keys of the queues of one partition."""
    return HOST + host.name


def base_key(key: QueueKey) -> QueueKey:
    """The key of the queue that entries of one partition came from, or those that were sent ahead will go to."""
    return (key[0], key[1].rpartition(HOST)[0])
