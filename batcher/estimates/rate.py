"""Arrival rates: the rows that come a second, and their trend."""

from sluice.models.units import NS_PER_S

LEVEL_WEIGHT = 0.4
TREND_WEIGHT = 0.2


class RateEstimate:
    """Rows a second of one pipeline, with their trend: Holt's double exponential smoothing."""

    __slots__ = ("_level", "_taken", "_trend", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._taken = 0
        self._level: float | None = None
        self._trend = 0.0

    @property
    def rows_ever(self) -> int:
        """The rows that have come since the beginning."""
        return self._taken + self.rows

    def take(self, elapsed_ns: int) -> float:
        """The rate to expect, from the `rows` that came in the time that has passed since it was taken before."""
        rate = self.rows * NS_PER_S / elapsed_ns
        self._taken += self.rows
        self.rows = 0
        if self._level is None:
            self._level = rate
        else:
            level = self._level + self._trend
            level += LEVEL_WEIGHT * (rate - level)
            self._trend += TREND_WEIGHT * (level - self._level - self._trend)
            self._level = level
        return max(self._level + self._trend, 0.0)
