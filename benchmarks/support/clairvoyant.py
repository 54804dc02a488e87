"""The most requests that a partition can answer in time if all arrivals are known in advance.

The partition serves one queue, or two that take turns freely. A batch has requests of one queue. It takes the mean time
of its rows. It has to start so early that even the most time ends by the deadline of its first request. All requests
have one row and the same objective, so nothing is lost by two rules. A queue is served in order of arrival. The
requests of a batch come one after the other: a batch that skips one can have it instead of its last one. The first rule
may lose a little where the noise is large: where the most time of a batch is over its mean by more than the most time
of one request.

A state is how many requests of each queue are decided, and how many of these are dropped. The dynamic programme finds
the earliest time at which the partition is free in each state. It leaves out only what cannot be better:

- A partition counts as free no earlier than when the next request comes. A state is left out if the same requests are
  decided, fewer are dropped and the partition is free as early.
- A request that is too late even alone is dropped before the next batch.
- Another request is dropped only if the next one of its queue comes before it would be done alone. Otherwise there is
  time to serve it before the next batch of its queue.
- Two batches in a row, of two queues, may both be complete when the first one starts. Then the one that is due first
  goes first. A batch is due at the deadline of its first request, less what the most time is over the mean. So if the
  next request of a queue is due first and a full batch from there on has come, the other queue starts none. The request
  may be dropped instead.
"""

import functools
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEVER = np.inf
"""The time of a request after the last one, and at which the partition is free in a state that cannot be."""

Times = NDArray[np.float64]
"""Times in whole nanoseconds, which floats hold without rounding."""


class _States(NamedTuple):
    """States of equally many decided requests: the time at which the partition is free, by requests of the first queue
    that are decided, from `first` on, and by dropped requests, from `dropped` on.
    """

    first: int
    dropped: int
    free: Times


class _Queue:
    """Arrivals by position: of the request, and of the last one that a full batch from there on can have."""

    def __init__(self, arrivals_ns: tuple[int, ...], rows: int) -> None:
        known = np.array(arrivals_ns, dtype=np.float64)
        self.arrivals = np.concatenate([known, np.full(rows + 1, NEVER)])
        ends = np.minimum(np.arange(len(known)) + rows - 1, len(known) - 1)
        self.full = np.concatenate([known[ends], [NEVER]])


class _Moves:
    """The batches and the dropped requests that may follow a state."""

    def __init__(
        self, queues: tuple[_Queue, _Queue], mean_ns: tuple[int, ...], most_ns: tuple[int, ...], objective_ns: int
    ) -> None:
        self._queues = queues
        self._mean = np.array(mean_ns, dtype=np.float64)
        # From the arrival of its first request to the latest start of a batch, by rows.
        self._slack = objective_ns - np.array(most_ns, dtype=np.float64)
        over = np.array(most_ns) - np.array(mean_ns)
        self._spread = over.max() - over.min()
        self._steps = np.arange(len(mean_ns))[:, None]

    def of(self, decided: int, states: _States) -> Iterator[tuple[int, _States]]:
        """States that follow, with the number of requests that are decided from one to the next."""
        first, dropped, free = states
        positions = np.arange(first, first + len(free))
        places = positions, decided - positions
        comes = [queue.arrivals[place] for queue, place in zip(self._queues, places, strict=True)]
        full = [queue.full[place] for queue, place in zip(self._queues, places, strict=True)]
        too_late = [come + self._slack[0] for come in comes]
        in_time = np.where(free <= np.minimum(*too_late)[:, None], free, NEVER)
        for each, (queue, place) in enumerate(zip(self._queues, places, strict=True)):
            come, other = comes[each], comes[1 - each]
            shift = 1 - each  # of the requests of the first queue that are decided

            last = queue.arrivals[place + self._steps]
            latest = np.where(last < NEVER, come + self._slack[:, None], -NEVER)
            # Times are whole: at the latest just before the other queue has a full batch, if that is due first.
            latest = np.minimum(latest, np.where(other + self._spread < come, full[1 - each] - 1, NEVER))
            sizes = int((last <= latest).any(axis=1).sum())
            ends = np.maximum(in_time, last[:sizes, :, None])
            missed = ends > latest[:sizes, :, None]
            ends += self._mean[:sizes, None, None]
            np.copyto(ends, NEVER, where=missed)
            for rows, end in enumerate(ends, 1):
                yield rows, _States(first + rows * shift, dropped, end)

            start = np.maximum(free, come[:, None])
            drops = (free > too_late[each][:, None]) | (queue.arrivals[place + 1][:, None] < start + self._mean[0])
            if (behind := (come + self._spread < other) & (other < NEVER)).any():
                drops |= behind[:, None] & (full[each][:, None] <= np.maximum(free, full[1 - each][:, None]))
            yield 1, _States(first + shift, dropped + 1, np.where(drops, free, NEVER))

    def merged(self, decided: int, blocks: list[_States]) -> _States:
        """The best of several blocks of states, without those that cannot be or that others are better than."""
        first, dropped = min(block.first for block in blocks), min(block.dropped for block in blocks)
        ends = [(block.first + block.free.shape[0], block.dropped + block.free.shape[1]) for block in blocks]
        free = np.full((max(end for end, _ in ends) - first, max(end for _, end in ends) - dropped), NEVER)
        for block, (row, column) in zip(blocks, ends, strict=True):
            part = free[block.first - first : row - first, block.dropped - dropped : column - dropped]
            np.minimum(part, block.free, out=part)
        rows = np.flatnonzero((free < NEVER).any(axis=1))
        first, free = first + int(rows[0]), free[rows[0] : rows[-1] + 1]
        positions = np.arange(first, first + len(free))
        one, two = self._queues
        following = np.minimum(one.arrivals[positions], two.arrivals[decided - positions])
        np.maximum(free, np.where(following < NEVER, following, 0)[:, None], out=free)
        best = np.minimum.accumulate(free, axis=1)
        np.copyto(free[:, 1:], NEVER, where=free[:, 1:] >= best[:, :-1])
        columns = np.flatnonzero((free < NEVER).any(axis=0))
        return _States(first, dropped + int(columns[0]), free[:, columns[0] : columns[-1] + 1])


@functools.lru_cache(maxsize=8)
def most_in_time(
    queues: tuple[tuple[int, ...], ...], mean_ns: tuple[int, ...], most_ns: tuple[int, ...], objective_ns: int
) -> int:
    """The most requests that can be in time, of one or two `queues` of arrivals in nanoseconds, each ascending.

    `mean_ns` and `most_ns` have the times of batches of 1, 2, ... rows. They must not fall with the rows.
    """
    one, two = (*queues, ()) if len(queues) == 1 else queues
    largest, requests = len(mean_ns), len(one) + len(two)
    moves = _Moves((_Queue(one, largest), _Queue(two, largest)), mean_ns, most_ns, objective_ns)
    coming: deque[list[_States]] = deque([] for _ in range(largest + 1))
    coming[0].append(_States(0, 0, np.zeros((1, 1))))
    for decided in range(requests):
        states = moves.merged(decided, coming.popleft())
        coming.append([])
        for rows, block in moves.of(decided, states):
            coming[rows - 1].append(block)
    return requests - moves.merged(requests, coming[0]).dropped
