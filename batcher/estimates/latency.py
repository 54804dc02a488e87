"""Latency estimates: a measured table, corrected online by what batches really took."""

from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS

QUANTILE = 0.99
"""Deadlines are checked against this quantile of the observed latencies: most batches are to meet them, not half."""
MEDIAN = 0.5
"""The end of a batch is expected at the median, so that the next one comes neither late nor too early."""
TAIL_GAIN = 0.05
MEDIAN_GAIN = 0.004
"""Relative steps of the quantile trackers for one observation.

What waits for a partition ends by the sum of many medians, so their errors do not cancel out as those of batches do.
"""
MEAN_GAIN = 0.02
"""Weight of one batch in the mean time by which batches take longer than their median."""
MAX_PAUSE_NS = 10 * NS_PER_MS
"""A batch counts as at most this much longer than the median in that mean."""
USUAL_SKEW = 0.1
"""The mean has to be this much above the median before that is believed, as a part of the median of the least size."""
ACCIDENTS = 4
"""After as many batches in a row on the same side of the median, each further one adds another step."""
MOST_STEPS = 8
CORRECTION_BOUNDS = (0.125, 16.0)
COMPARE_BATCHES = 8
"""The rates of batch sizes are compared again after this many observations, as one changes little (5 % at most)."""
FAR = 3.0
"""Two batches in a row that take this many times as long as expected, or as little, are no accident."""
DEEP = 2
"""Efficient batches that wait from which on the rate counts for more than the first entry."""
NEARLY_BEST = 0.99
"""A batch size within 1 % of the best rate is as good as the best, and smaller is quicker."""
FULL_ENOUGH = 0.7
"""Share of the best rate below which a batch is too small while there is more to do, or time to wait for more."""


class LatencyEstimate:
    """Predicted latency of one model on one kind of partition.

    Each cell of the table carries a correction of its median; the tail, by how much a batch takes longer than that at
    the `QUANTILE`, is one for all sizes, since most sizes are seldom seen. Both are tracked as quantiles q by
    stochastic approximation: up by a gain times q when a batch took longer than estimated, down by the gain times
    (1 - q) when not. Medians move faster after several batches on the same side, and two in a row that are far off set
    them at once. Both are kept within bounds, and `decay` lets those fall back to the table that no batch confirms any
    more, so that a bad minute is forgotten. `max_rows` is the largest batch that is to be made.

    What makes a batch longer may grow with it, as other work on its device does, or may not, as a pause of the process
    does. So tails and sudden changes are known as a factor and as a time, and the one counts for a size that is less.
    With the larger one, a pause in small batches would make large ones seem impossible for ever. Pauses also make the
    mean longer than the median: where they do, the expected time is the mean.
    """

    __slots__ = (
        "_cell_of",
        "_efficient",
        "_enough",
        "_hand_off_ns",
        "_mean_above_ns",
        "_medians",
        "_observations",
        "_paused_ns",
        "_profile_ns",
        "_run",
        "_seen",
        "_sizes",
        "_surprise",
        "_table",
        "_table_cells",
        "_table_sizes",
        "_tail",
        "_tail_ns",
        "max_rows",
    )

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
        self._table_cells = tuple(self._cell_of)
        self._profile_ns = [latency for _, latency in table.cells]
        sizes = [size for size, _ in table.cells if size < max_rows]
        self._table_sizes = self._sizes = (*sizes, max_rows)
        self._tail = 1.0
        self._tail_ns = 0.0  # the tail as a time, where `_tail` has it as a factor on the median
        self._mean_above_ns = 0.0  # by how much batches take longer than their median, on average
        self._paused_ns = 0.0  # the part of that which is expected of every batch
        self._surprise = 1.0
        self._run = 0
        self._medians = [1.0] * len(table.cells)
        self._seen: set[int] = set()
        self._observations = 0
        self._efficient = 0
        self._enough = 0
        self._table: LatencyTable | None = None  # `table`, as long as nothing has changed it

    def limit(self, rows: int) -> None:
        """Limit batches to `rows` rows, and to the maximum of the table.

        More rows are predicted to take what they would in batches of that size.
        """
        largest = self._table_sizes[-1]
        self.max_rows = most = min(rows, largest)
        self._sizes = (*(size for size in self._table_sizes if size < most), most)
        self._cell_of = list(self._table_cells)
        last = self._cell_of[most]
        for column in (self._profile_ns, self._medians):
            del column[self._table_cells[-1] + 1 :]
        for above in range(most, largest, most):
            self._profile_ns.append((above // most + 1) * (self._profile_ns[last] + self._hand_off_ns))
            self._medians.append(self._medians[last])
            rest = range(above + 1, min(above + most, largest) + 1)
            self._cell_of[rest.start : rest.stop] = [len(self._profile_ns) - 1] * len(rest)
        self._efficient = 0
        self._table = None

    def profile_ns(self, rows: int) -> int:
        """Latency of a batch of `rows` rows by the measured table alone."""
        return self._profile_ns[self._cell_of[rows]]

    def service_ns(self, rows: int) -> int:
        """Latency that most batches of `rows` rows (1 to the maximum batch size) stay below."""
        return self.times_ns(rows)[1]

    def expected_ns(self, rows: int) -> int:
        """Latency that is expected of a batch of `rows` rows: the median, or more where some batches pause."""
        cell = self._cell_of[rows]
        return int(self._profile_ns[cell] * self._medians[cell] + self._paused_ns)

    def times_ns(self, rows: int) -> tuple[int, int]:
        """`expected_ns` and `service_ns` of a batch of `rows` rows."""
        cell = self._cell_of[rows]
        profile_ns = self._profile_ns[cell]
        median_ns = profile_ns * self._medians[cell]
        expected_ns = median_ns + self._paused_ns
        most_ns = min(median_ns * self._tail, median_ns + self._tail_ns, profile_ns * CORRECTION_BOUNDS[1])
        return int(expected_ns), int(max(most_ns, expected_ns))

    def observe(self, rows: int, latency_ns: int) -> None:
        """Record that a batch of `rows` rows took `latency_ns`."""
        cell = self._cell_of[rows]
        self._seen.add(cell)
        profile_ns, median = self._profile_ns[cell], self._medians[cell]
        ratio = latency_ns / profile_ns
        surprise = ratio / median
        least, most = min(surprise, self._surprise), max(surprise, self._surprise)
        if least > FAR or most < 1 / FAR:
            # Twice in a row: the machine has changed, so the estimates follow at once.
            self._move(cell, least if least > FAR else most)
            self._surprise = 1.0
            self._efficient = 0
            return
        self._surprise = surprise
        median_ns = profile_ns * median
        most_ns = min(latency_ns, profile_ns * CORRECTION_BOUNDS[1])
        tail = _step(self._tail, most_ns / median_ns, QUANTILE, TAIL_GAIN)
        self._tail = min(max(tail, 1.0), CORRECTION_BOUNDS[1])
        self._tail_ns = max(_step(median_ns + self._tail_ns, most_ns, QUANTILE, TAIL_GAIN) - median_ns, 0.0)
        above_ns = latency_ns - median_ns
        self._mean_above_ns += MEAN_GAIN * (min(above_ns, MAX_PAUSE_NS) - self._mean_above_ns)
        side = 1 if surprise > 1 else -1
        self._run = self._run + side if self._run * side > 0 else side
        steps = min(max(abs(self._run) - ACCIDENTS, 1), MOST_STEPS)
        self._medians[cell] = _bounded(_step(median, ratio, MEDIAN, steps * MEDIAN_GAIN))
        self._expect_pauses()
        self._observations += 1
        if self._observations % COMPARE_BATCHES == 0:
            self._efficient = 0

    def _move(self, cell: int, factor: float) -> None:
        """Change all medians as that of one cell, by the same factor or by the same time: by what changes them less."""
        change_ns = (factor - 1) * self._profile_ns[cell] * self._medians[cell]
        lesser = min if factor > 1 else max
        self._medians = [
            _bounded(lesser(median * factor, median + change_ns / profile_ns))
            for median, profile_ns in zip(self._medians, self._profile_ns, strict=True)
        ]
        self._expect_pauses()

    def _expect_pauses(self) -> None:
        """Renew what is derived from the medians."""
        self._table = None
        paused_ns = self._mean_above_ns - USUAL_SKEW * self._profile_ns[0] * self._medians[0]
        self._paused_ns = paused_ns if paused_ns > 0 else 0.0

    def decay(self) -> None:
        """Let the corrections of all sizes that no batch had since the last time fall back half-way to the table."""
        seen = self._seen
        if not seen:
            self._tail = 1 + (self._tail - 1) / 2
            self._tail_ns /= 2
            self._mean_above_ns /= 2
        self._medians = [
            correction if cell in seen else 1 + (correction - 1) / 2 for cell, correction in enumerate(self._medians)
        ]
        self._expect_pauses()
        self._seen = set()
        self._efficient = 0

    @property
    def correction(self) -> float:
        """The median latency relative to the table; of the sizes that ran, the middle one counts."""
        seen = sorted(correction for correction in self._medians if correction != 1)
        return seen[len(seen) // 2] if seen else 1.0

    @property
    def efficient_rows(self) -> int:
        """The smallest batch size whose rate is nearly the best; 1 if larger ones gain nothing."""
        if not self._efficient:
            self._compare_rates()
        return self._efficient

    def least_rows(self, waiting: int) -> int:
        """The least rows of a batch: the more rows wait, the nearer the batch has to come to the best rate."""
        if not self._efficient:
            self._compare_rates()
        full = self._efficient
        if waiting <= full:
            return 1
        return full if waiting >= DEEP * full else self._enough

    @property
    def enough_rows(self) -> int:
        """The smallest batch size whose rate is `FULL_ENOUGH` of the best."""
        if not self._efficient:
            self._compare_rates()
        return self._enough

    def _compare_rates(self) -> None:
        rates = [size / max(self.expected_ns(size), 1) for size in self._sizes]
        best = max(rates)
        self._efficient = next(
            size for size, rate in zip(self._sizes, rates, strict=True) if rate >= best * NEARLY_BEST
        )
        self._enough = next(size for size, rate in zip(self._sizes, rates, strict=True) if rate >= best * FULL_ENOUGH)

    @property
    def table(self) -> LatencyTable:
        """The expected latencies as they are corrected now; the same object as long as they are the same."""
        return self._table or self._make_table()

    def _make_table(self) -> LatencyTable:
        self._table = LatencyTable(tuple((size, max(self.expected_ns(size), 1)) for size in self._sizes))
        return self._table

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that differ in latency, ascending; the last is the maximum."""
        return self._sizes

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


def _step(estimate: float, seen: float, quantile: float, gain: float) -> float:
    """The estimate of a quantile after one observation: a step towards it."""
    if seen > estimate:
        return min(estimate * (1 + gain * quantile), seen)
    return max(estimate * (1 - gain * (1 - quantile)), seen)


def _bounded(correction: float) -> float:
    low, high = CORRECTION_BOUNDS
    return min(max(correction, low), high)
