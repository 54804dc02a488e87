"""The ways to nodes: round trip and bandwidth, as messages and large tensors show them."""

from collections import deque
from statistics import median

LARGE_BYTES = 256 << 10
"""Fewer bytes say nothing about the bandwidth."""
LONGEST_ROUND_TRIP_NS = 60_000_000_000
"""A longer one is not believed, since the other end has a say in it."""
_ROUND_TRIPS = 8
_TRANSFERS = 9


class NodeLink:
    """The way to one node: the quickest of the last round trips, and the median of the last bandwidths.

    Both are 0 until they were measured.
    """

    def __init__(self) -> None:
        self._round_trips: deque[int] = deque(maxlen=_ROUND_TRIPS)
        self._bandwidths: deque[float] = deque(maxlen=_TRANSFERS)
        self.round_trip_ns = 0
        self.bytes_per_s = 0

    def answered(self, round_trip_ns: int) -> None:
        """Record the round trip of a small message, without the time that it spent at the other end."""
        self._round_trips.append(min(max(round_trip_ns, 0), LONGEST_ROUND_TRIP_NS))
        self.round_trip_ns = min(self._round_trips)

    def transferred(self, nbytes: int, took_ns: int) -> None:
        """Record that tensors of `nbytes` were on their way for `took_ns`, one after the other, both ways."""
        on_the_way_ns = took_ns - self.round_trip_ns
        if nbytes >= LARGE_BYTES and on_the_way_ns > 0:
            self._bandwidths.append(nbytes * 1e9 / on_the_way_ns)
            self.bytes_per_s = round(median(self._bandwidths))

    def one_way_ns(self, nbytes: int) -> int:
        """The time that a message with `nbytes` of tensors is on its way."""
        transfer_ns = nbytes * 1_000_000_000 // self.bytes_per_s if self.bytes_per_s else 0
        return self.round_trip_ns // 2 + transfer_ns
