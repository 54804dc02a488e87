"""Limits: batches that ran out of memory are made smaller, and after a while a little larger again."""

from sluice.models.units import NS_PER_S

FIRST_RETRY_NS = 60 * NS_PER_S
"""Time that batches stay at a limit before batches of twice the rows are tried."""
LAST_RETRY_NS = 3600 * NS_PER_S
"""The longest that they stay: it is twice as long after every attempt that ran out of memory again."""


class BatchLimit:
    """The most `rows` of a batch of one model on one kind of partition, since larger ones ran out of memory there.

    It is half of what failed, and doubled each time that it has held for a while, up to `most`, the largest batch there
    is. When that has held for as long, the limit has `lapsed`. `room` is the largest batch that may have memory: one
    row less than the smallest that had none since.
    """

    __slots__ = ("_delay_ns", "_most", "_raised", "_retry_ns", "lapsed", "room", "rows")

    def __init__(self, most: int) -> None:
        self.rows = self.room = self._most = most
        self.lapsed = False
        self._delay_ns = FIRST_RETRY_NS
        self._retry_ns = 0
        self._raised = False

    def ran_out(self, rows: int, now_ns: int) -> bool:
        """Record that a batch of `rows` rows had no memory; False if it was above the limit, which does not change."""
        self.room = min(self.room, rows - 1)
        if rows > self.rows:
            return False
        self.rows = max(rows // 2, 1)
        if self._raised:
            self._delay_ns = min(2 * self._delay_ns, LAST_RETRY_NS)
            self._raised = False
        self._retry_ns = now_ns + self._delay_ns
        return True

    def held(self, now_ns: int) -> bool:
        """Raise the limit, or have it lapse, if it has held for long enough; whether it has."""
        if now_ns < self._retry_ns:
            return False
        self.lapsed = self.rows == self._most
        self.rows = min(2 * self.rows, self._most)
        self.room = max(self.room, self.rows)
        self._raised = True
        self._retry_ns = now_ns + self._delay_ns
        return True
