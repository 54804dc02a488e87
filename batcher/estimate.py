"""Latency estimates: a measured table, corrected online by what batches really took."""

from models.profile import LatencyTable

QUANTILE = 0.9
"""Estimates follow this quantile of the observed latencies: deadlines are met by most batches, not by half of them."""
GAIN = 0.05
"""Relative step of the quantile tracker for one observation."""
CORRECTION_BOUNDS = (0.125, 16.0)
NEARLY_BEST = 0.97
"""A batch size within 3 % of the best rate is as good as the best, and smaller is quicker."""


class LatencyEstimate:
    """Predicted latency of one model on one kind of partition.

    Each cell of the table carries a correction, tracked as a quantile by stochastic approximation: up by
    `GAIN * QUANTILE` when a batch took longer than estimated, down by `GAIN * (1 - QUANTILE)` when not. It is kept
    within bounds and can be let fall back to the table with `decay`, so that a bad minute is forgotten.
    """

    __slots__ = ("_cell_of", "_corrections", "_efficient", "_hand_off_ns", "_profile_ns", "_sizes", "max_rows")

    def __init__(self, table: LatencyTable, max_rows: int, hand_off_ns: int) -> None:
        self.max_rows = max_rows
        self._hand_off_ns = hand_off_ns
        last = len(table.cells) - 1
        self._cell_of = [0] * (max_rows + 1)
        cell = 0
        for rows in range(1, max_rows + 1):
            while cell < last and rows > table.cells[cell][0]:
                cell += 1
            self._cell_of[rows] = cell
        self._profile_ns = [latency for _, latency in table.cells]
        sizes = [min(size, max_rows) for size, _ in table.cells if size < max_rows]
        self._sizes = (*sizes, max_rows)
        self._corrections = [1.0] * len(table.cells)
        self._efficient = 0

    def profile_ns(self, rows: int) -> int:
        """Latency of a batch of `rows` rows by the measured table alone."""
        return self._profile_ns[self._cell_of[rows]]

    def service_ns(self, rows: int) -> int:
        """Corrected latency of a batch of `rows` rows (1 to the maximum batch size)."""
        cell = self._cell_of[rows]
        return int(self._profile_ns[cell] * self._corrections[cell])

    def observe(self, rows: int, latency_ns: int) -> None:
        """Take in that a batch of `rows` rows took `latency_ns`."""
        cell = self._cell_of[rows]
        correction = self._corrections[cell]
        if latency_ns > self._profile_ns[cell] * correction:
            correction *= 1 + GAIN * QUANTILE
        else:
            correction *= 1 - GAIN * (1 - QUANTILE)
        low, high = CORRECTION_BOUNDS
        self._corrections[cell] = min(max(correction, low), high)
        self._efficient = 0

    def decay(self) -> None:
        """Let every correction fall back half-way to the table."""
        self._corrections = [1 + (correction - 1) / 2 for correction in self._corrections]
        self._efficient = 0

    @property
    def efficient_rows(self) -> int:
        """The smallest batch size whose rate is nearly the best: 1 for a model that gains nothing from batching."""
        if not self._efficient:
            rates = [size / (self.service_ns(size) + self._hand_off_ns) for size in self._sizes]
            enough = max(rates) * NEARLY_BEST
            self._efficient = next(size for size, rate in zip(self._sizes, rates, strict=True) if rate >= enough)
        return self._efficient

    def row_ns(self, rows: int) -> int:
        """Time that a row takes of a partition in batches of `rows` rows."""
        return (self.service_ns(rows) + self._hand_off_ns) // rows

    def rows_within(self, budget_ns: int, limit: int) -> int:
        """The largest batch of at most `limit` rows whose latency is within the budget; 0 when there is none."""
        if self.service_ns(limit) <= budget_ns:
            return limit
        for size in reversed(self._sizes):
            if size < limit and self.service_ns(size) <= budget_ns:
                return size
        return 0
