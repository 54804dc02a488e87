"""The latency of a model as a table of measurements, one cell a batch size."""

from bisect import bisect_left
from itertools import accumulate, pairwise

import msgspec

from sluice.models.errors import ConfigError


class LatencyTable(msgspec.Struct, frozen=True):
    """The latency of one model on one kind of partition.

    `cells` maps batch sizes, ascending, to nanoseconds. A size that was not measured takes the next larger measured
    cell: the time of matrix products grows in steps, so interpolation would mispredict.
    """

    cells: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.cells]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise ConfigError(f"latency table: expected ascending batch sizes of at least 1, got {sizes}")
        if any(latency <= 0 for _, latency in self.cells):
            raise ConfigError("latency table: expected latencies above 0")

    @classmethod
    def from_ms(cls, cells: dict[int, float]) -> "LatencyTable":
        """A table that a user wrote, as `{batch size: milliseconds}`, in any order.

        Raises ConfigError also where a larger batch takes less time than a smaller one.
        """
        table = cls(tuple((size, round(cells[size] * 1e6)) for size in sorted(cells)))
        for (smaller, smaller_ns), (larger, larger_ns) in pairwise(table.cells):
            if larger_ns < smaller_ns:
                raise ConfigError(
                    "latency table: expected larger batches to take no less time than smaller ones, "
                    f"got {cells[larger]:g} ms for {larger} rows and {cells[smaller]:g} ms for {smaller}"
                )
        return table

    def in_ms(self) -> dict[int, float]:
        """A measured table as a user would write it: a larger batch takes at least the time of a smaller one."""
        rising = accumulate((latency for _, latency in self.cells), max)
        return {size: latency / 1e6 for (size, _), latency in zip(self.cells, rising, strict=True)}

    def latency_ns(self, rows: int) -> int:
        """Latency of a batch of `rows` rows: the next larger measured cell, or the largest cell."""
        index = bisect_left(self.cells, (rows, 0))
        return self.cells[min(index, len(self.cells) - 1)][1]
