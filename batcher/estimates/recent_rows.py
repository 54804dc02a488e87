"""Rows that came lately: how many a pipeline gets, or is admitted, as time passes."""


class RecentRows:
    """The rows that came within `memory_ns`, each counted less the longer ago it came."""

    __slots__ = ("_last_ns", "_memory_ns", "_rows")

    def __init__(self, memory_ns: int) -> None:
        self._memory_ns = memory_ns
        self._rows = 0.0
        self._last_ns = 0

    def add(self, rows: float, now_ns: int) -> None:
        """Count rows that come now."""
        self._rows = self.rows(now_ns) + rows
        self._last_ns = now_ns

    def rows(self, now_ns: int) -> float:
        """The rows that came lately."""
        return self._rows * max(1 - (now_ns - self._last_ns) / self._memory_ns, 0.0)

    def within(self, span_ns: int, now_ns: int, *, least: float = 0.0) -> float:
        """The rows to expect within `span_ns` at the recent rate; at least `least` if any ever came."""
        rows = self.rows(now_ns) * span_ns / self._memory_ns
        return rows if rows > least or not self._last_ns else least
