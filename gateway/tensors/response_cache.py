"""The response cache: reuses answers for requests with the same inputs, byte for byte."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.models.tensors.arrays import WireBytes

ENTRY_BYTES = 1024
"""Upper bound of an entry's size apart from its tensors, so that many small entries are bounded as well."""
_DIGEST_BYTES = 16


class CacheKey(NamedTuple):
    """The key of an answer: the revision of a pipeline and a digest of the inputs."""

    pipeline: str
    inputs: bytes


class _Entry(NamedTuple):
    outputs: Mapping[str, Tensor]
    size: int


class ResponseCache:
    """At most `capacity` bytes of answers; the least recently used ones are evicted."""

    def __init__(self, capacity: int, statistics: Statistics, clock: Callable[[], int]) -> None:
        self.used_bytes = 0
        self.clock = clock
        self._capacity = capacity
        self._statistics = statistics
        self._entries: OrderedDict[CacheKey, _Entry] = OrderedDict()

    def look_up(self, key: CacheKey, since_ns: int) -> Mapping[str, Tensor] | None:
        """The outputs of a cached answer, which must not be written to; a hit counts the time since `since_ns`."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        self._statistics.of(key.pipeline).cache_hit(self.clock() - since_ns)
        return entry.outputs

    def store_answer(self, key: CacheKey, lookup_ns: int, answer: Answer) -> None:
        """Store a successful answer; as `store`."""
        if answer.outcome.answered:
            self.store(key, lookup_ns, answer.outputs)

    def store(self, key: CacheKey, lookup_ns: int, outputs: Mapping[str, Tensor]) -> None:
        """Store a copy of outputs whose look-up took `lookup_ns`, evicting others if needed."""
        began_ns = self.clock()
        size = ENTRY_BYTES + sum(tensor.nbytes for tensor in outputs.values())
        if size <= self._capacity:
            if (known := self._entries.pop(key, None)) is not None:
                self.used_bytes -= known.size
            self._entries[key] = _Entry({name: _copy(tensor) for name, tensor in outputs.items()}, size)
            self.used_bytes += size
            while self.used_bytes > self._capacity:
                self.used_bytes -= self._entries.popitem(last=False)[1].size
        self._statistics.of(key.pipeline).cache_miss(lookup_ns + self.clock() - began_ns)


def request_key(pipeline: str, inputs: Mapping[str, Tensor]) -> CacheKey:
    """The key of a request to a revision of a pipeline."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(inputs):
        tensor = inputs[name]
        digest.update(repr((name, tensor.shape, tensor.nbytes)).encode())
        if isinstance(tensor, WireBytes):
            digest.update(memoryview(tensor.buffer)[tensor.row_offsets[0] : tensor.row_offsets[-1]])
        else:
            digest.update(np.ascontiguousarray(tensor).data)
    return CacheKey(pipeline, digest.digest())


def _copy(tensor: Tensor) -> Tensor:
    """A copy that shares no memory with workers."""
    if not isinstance(tensor, WireBytes):
        return tensor.copy()
    first, end = int(tensor.row_offsets[0]), int(tensor.row_offsets[-1])
    return WireBytes(bytes(tensor.buffer[first:end]), tensor.shape, tensor.row_offsets - first)
