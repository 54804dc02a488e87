"""Arrival rates: the rows that come a second, and their trend."""

from sluice.models.units import NS_PER_S

LEVEL_WEIGHT = 0.4
TREND_WEIGHT = 0.2


class RateEstimate:
    """Rows a second of one pipeline, with their trend: Holt's double exponential smoothing."""

    __slots__ = ("_level", "_rows", "_trend")

    def __init__(self) -> None:
        self._rows = 0
        self._level: float | None = None
        self._trend = 0.0

    def take(self, rows: int, elapsed_ns: int) -> float:
        """The rate to expect after `elapsed_ns` more; `rows` counts all rows since the beginning."""
        if rows == self._rows and not self._level and not self._trend:
            self._level = 0.0
            return 0.0
        rate = (rows - self._rows) * NS_PER_S / elapsed_ns
        self._rows = rows
        if self._level is None:
            self._level = rate
        else:
            level = self._level + self._trend
            level += LEVEL_WEIGHT * (rate - level)
            self._trend += TREND_WEIGHT * (level - self._level - self._trend)
            self._level = level
        return self.ahead(1.0)

    def ahead(self, steps: float) -> float:
        """The rate to expect in that many steps, each as long as the time between the last two; 0 before the first."""
        return 0.0 if self._level is None else max(self._level + self._trend * steps, 0.0)
