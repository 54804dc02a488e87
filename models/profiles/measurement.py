"""What measuring a model comes to: percentiles of its latency by batch size, memory, times of loading (types only)."""

from itertools import pairwise
from typing import Annotated

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

PERCENTILES = (50, 90, 99)

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Latency = Annotated[int, msgspec.Meta(ge=1, le=365 * 86_400 * NS_PER_S)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class ModelMemory(msgspec.Struct, frozen=True, array_like=True):
    """A batch of b rows takes `rest_bytes + b * row_bytes` beyond what a process takes without the model."""

    rest_bytes: int
    row_bytes: int = 0

    def of(self, rows: int) -> int:
        """Bytes of the model in batches of that many rows."""
        return self.rest_bytes + rows * self.row_bytes


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Percentiles of the latency of one batch size over `samples` runs (0: simulated)."""

    batch: _Positive
    p50_ns: _Latency
    p90_ns: _Latency
    p99_ns: _Latency
    samples: _Count

    def __post_init__(self) -> None:
        if not self.p50_ns <= self.p90_ns <= self.p99_ns:
            raise ValueError("expected p50_ns <= p90_ns <= p99_ns")


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one process found out about a model; None is what was not measured.

    A batch of b rows takes `memory_rest_bytes + b * memory_row_bytes` beyond what a process takes without the model.
    `warm_up_ns` is how much longer than usual the first run after a load takes; `no_memory_batch` is the batch size
    that there was no memory for, after which no larger one was tried.
    """

    cells: tuple[Cell, ...]
    memory_rest_bytes: _Count | None = None
    memory_row_bytes: _Count | None = None
    load_ns: _Count | None = None
    warm_up_ns: _Count | None = None
    no_memory_batch: _Positive | None = None

    def __post_init__(self) -> None:
        sizes = [cell.batch for cell in self.cells]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError(f"expected cells with ascending batch sizes, got {sizes}")

    def table(self, percentile: int) -> LatencyTable:
        """The latencies at a percentile, which is one of `PERCENTILES`."""
        if percentile not in PERCENTILES:
            raise ConfigError(f"percentile {percentile}: profiles have {', '.join(map(str, PERCENTILES))}")
        return LatencyTable(tuple((cell.batch, getattr(cell, f"p{percentile}_ns")) for cell in self.cells))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what is odd but usable. Larger batches whose median is lower stay as they are."""
        quicker = tuple(
            f"batch {larger.batch} is quicker than batch {smaller.batch} at the median "
            f"({larger.p50_ns} against {smaller.p50_ns} ns)"
            for smaller, larger in pairwise(self.cells)
            if larger.p50_ns < smaller.p50_ns
        )
        if self.no_memory_batch is None:
            return quicker
        return (*quicker, f"there was no memory for batch {self.no_memory_batch}")
