"""Demand: what is asked for, whether or not it is served."""

from sluice.models.units import NS_PER_S

MEMORY_NS = 5 * NS_PER_S
"""What came longer ago than this does not count: models move by it, and not for a few rows."""


class Demand:
    """The rows that came lately, each of them counted less the longer ago that is."""

    __slots__ = ("_last_ns", "_rows")

    def __init__(self) -> None:
        self._rows = 0.0
        self._last_ns = 0

    def add(self, rows: int, now_ns: int) -> None:
        """Take in that rows came."""
        self._rows = self.rows(now_ns) + rows
        self._last_ns = now_ns

    def rows(self, now_ns: int) -> float:
        """As many as came lately."""
        return self._rows * max(1 - (now_ns - self._last_ns) / MEMORY_NS, 0.0)
