"""The result of measuring a model: percentiles of latency by batch size, memory, time of loading (types only)."""

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
    """A batch of b rows takes `rest_bytes + b * row_bytes` beyond the memory of the process without the model."""

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
    """The measurements of a model by one process; None was not measured.

    A batch of b rows takes `memory_rest_bytes + b * memory_row_bytes` beyond the memory of the process without the
    model. `warm_up_ns` is the extra time of the first run after a load; `no_memory_batch` is the batch size that memory
    was too small for, after which no larger one was tried.
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
        """The latencies at a percentile, which must be one of `PERCENTILES`."""
        if percentile not in PERCENTILES:
            raise ConfigError(f"percentile: expected one of {', '.join(map(str, PERCENTILES))}, got {percentile}")
        return LatencyTable(tuple((cell.batch, getattr(cell, f"p{percentile}_ns")) for cell in self.cells))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on odd but usable figures. A larger batch with a lower median is kept as it is."""
        quicker = tuple(
            f"batch {larger.batch} is quicker than batch {smaller.batch} at the median "
            f"({larger.p50_ns} against {smaller.p50_ns} ns)"
            for smaller, larger in pairwise(self.cells)
            if larger.p50_ns < smaller.p50_ns
        )
        if self.no_memory_batch is None:
            return quicker
        return (*quicker, f"there was no memory for batch {self.no_memory_batch}")
