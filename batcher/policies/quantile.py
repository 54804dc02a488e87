"""The policy `quantile`: the batch size follows from a regression of the tail of latencies on batch sizes."""

from collections import deque
from typing import Annotated

from msgspec import Meta

from sluice.batcher.estimates.quantile_line import quantile_line
from sluice.batcher.interface.config import Limits
from sluice.batcher.policies.base import PolicySettings
from sluice.batcher.policies.learned_size import LearnedSizePolicy, check_target
from sluice.batcher.policies.registry import batch_policy
from sluice.models.units import ms_to_ns

WINDOW = 128
"""The batches that a partition goes by, the last ones."""
REFIT_BATCHES = 8
"""The line is drawn again after this many batches."""
GROWTH = 2
"""A batch has at most this many times the rows of the largest one that was seen, since lines are bent farther out."""


class QuantileSettings(PolicySettings, frozen=True, tag="quantile"):
    """The largest batch whose time, by a regression of its quantile on the rows, is within the target."""

    target_ms: Annotated[float, Meta(description="The time that a batch may take on its partition.")] = 20.0
    quantile: Annotated[float, Meta(description="The share of batches that are to take at most that.")] = 0.99
    budget: Annotated[float, Meta(description="The share of the time that batches are made for.")] = 0.92
    max_delay_ms: Annotated[float, Meta(description="How long the first request of a batch may wait for others.")] = 0.0

    def __post_init__(self) -> None:
        check_target(self.target_ms, self.budget, self.max_delay_ms)
        if not 0.5 <= self.quantile < 1:
            raise ValueError(f"quantile: expected at least 0.5 and less than 1, got {self.quantile:g}")

    def longest_wait_ns(self, rate: float) -> int:
        """As in `PolicyConfig`."""
        return ms_to_ns(self.max_delay_ms)


class QuantileSize:
    """The size at which a line through the tail of the last batches meets the budget (Clipper, NSDI'17, §4.3.1).

    Where there is no line that rises from zero or above, as for batches of one size, time is taken to be proportional
    to the rows, at the same quantile of the ratios. If the largest batch is in time by that, one more row is tried: of
    a time that is mostly fixed, proportion would never tell.
    """

    def __init__(self, settings: QuantileSettings) -> None:
        self._quantile = settings.quantile
        self._budget_ns = ms_to_ns(settings.target_ms * settings.budget)
        self._batches: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._until_refit = REFIT_BATCHES
        self.rows = 1

    def observe(self, rows: int, took_ns: int) -> None:
        """Take a batch in, and draw the line again when it is time."""
        self._batches.append((rows, took_ns))
        self._until_refit -= 1
        if not self._until_refit:
            self._until_refit = REFIT_BATCHES
            self.rows = self._fit()

    def _fit(self) -> int:
        points = list(self._batches)
        largest = max(rows for rows, _ in points)
        line = quantile_line(points, self._quantile, points.index(max(points)))
        if line is not None and line[0] >= 0 and line[1] > 0:
            within = (self._budget_ns - line[0]) / line[1]
        else:
            ratios = sorted(took_ns / rows for rows, took_ns in points)
            within = self._budget_ns / max(ratios[min(int(self._quantile * len(ratios)), len(ratios) - 1)], 1.0)
            if within >= largest:
                within = max(within, largest + 1)
        return max(int(min(within, GROWTH * largest)), 1)


@batch_policy(QuantileSettings)
def build(settings: QuantileSettings, limits: Limits) -> LearnedSizePolicy:
    """The policy; each partition of the model has its own regression."""
    return LearnedSizePolicy(lambda: QuantileSize(settings), settings.max_delay_ms)
