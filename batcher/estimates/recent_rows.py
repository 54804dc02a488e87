"""How many rows of a pipeline come, or are admitted, as time passes."""

from sluice.models.units import NS_PER_S

MEMORY_NS = NS_PER_S // 4
"""What came longer ago than this hardly counts: as long as objectives are, so that a flow's change is seen."""


class Inflow:
    """The rows that came lately, each of them counted less the longer ago that is."""

    __slots__ = ("_last_ns", "_rows")

    def __init__(self) -> None:
        self._rows = 0.0
        self._last_ns = 0

    def add(self, rows: int, now_ns: int) -> None:
        """Take in that rows came."""
        self._rows = self._lately(now_ns) + rows
        self._last_ns = now_ns

    def within(self, span_ns: int, now_ns: int, *, least: float = 0.0) -> float:
        """The rows to expect in as much time, if it goes on like that: `least` at least, once there were any."""
        rows = self._lately(now_ns) * span_ns / MEMORY_NS
        return rows if rows > least or not self._last_ns else least

    def _lately(self, now_ns: int) -> float:
        return self._rows * max(1 - (now_ns - self._last_ns) / MEMORY_NS, 0.0)
