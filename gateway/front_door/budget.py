"""The bytes that clients have sent, or have not taken yet, over all connections."""

import threading

from sluice.models.errors import RejectedError

_SHARE = 8
"""An eighth lies above the mark: it is kept for small requests while large ones wait."""


class Budget:
    """One count of bytes for both protocols.

    The event loop changes `used` directly, since requests do so several times. Above `mark`, large requests wait, and
    above `limit` requests are refused. Other threads use `grow`, which lowers the mark and the limit until `shrink`.
    """

    __slots__ = ("_lock", "limit", "mark", "used")

    def __init__(self, limit_bytes: int) -> None:
        self.used = 0
        self.limit = limit_bytes
        self.mark = limit_bytes - limit_bytes // _SHARE
        self._lock = threading.Lock()

    def grow(self, size: int) -> None:
        """Take bytes for the work of a thread. Raises RejectedError if there are too few."""
        with self._lock:
            if self.used + size > self.limit:
                raise RejectedError("the server has no memory left to read the request")
            self.limit -= size
            self.mark -= size

    def shrink(self, size: int) -> None:
        """Give back bytes that `grow` took."""
        with self._lock:
            self.limit += size
            self.mark += size
