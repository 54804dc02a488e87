"""The policy `aimd`: batches grow by a few rows at a time, and step back when one took longer than it may."""

from typing import Annotated

from msgspec import Meta

from sluice.batcher.interface.config import Limits
from sluice.batcher.policies.base import PolicySettings
from sluice.batcher.policies.learned_size import LearnedSizePolicy, check_target
from sluice.batcher.policies.registry import batch_policy
from sluice.models.units import ms_to_ns


class AimdSettings(PolicySettings, frozen=True, tag="aimd"):
    """Additive increase, multiplicative decrease: no profile is asked, each partition finds its batch size."""

    target_ms: Annotated[float, Meta(description="The time that a batch may take on its partition.")] = 20.0
    add: Annotated[int, Meta(description="Rows by which batches grow.")] = 1
    backoff: Annotated[
        float, Meta(description="The share of its rows that remains when a batch took longer than that.")
    ] = 0.9
    budget: Annotated[
        float, Meta(description="Batches grow while they take less than this share of the time; 1 is plain AIMD.")
    ] = 0.92
    max_delay_ms: Annotated[float, Meta(description="How long the first request of a batch may wait for others.")] = 0.0

    def __post_init__(self) -> None:
        check_target(self.target_ms, self.budget, self.max_delay_ms)
        if self.add < 1:
            raise ValueError(f"add: expected at least 1, got {self.add}")
        if not 0 < self.backoff < 1:
            raise ValueError(f"backoff: expected a share above 0 and below 1, got {self.backoff:g}")

    def longest_wait_ns(self, rate: float) -> int:
        """As in `PolicyConfig`."""
        return ms_to_ns(self.max_delay_ms)


class AimdSize:
    """Additive increase and multiplicative decrease (Clipper, NSDI'17, §4.3.1), with a band in which nothing changes.

    A full batch that took at most the budget adds rows; one that took longer than the target takes a share of its rows
    away. In between the size stays. Without that band each cycle would end with a batch that is late. The next batch
    is closed before one ends: so it is full as well with as many rows as the size had one step before, and one of more
    rows than the size was closed before the last step back, or is one request, whose being late is nothing new.
    """

    def __init__(self, settings: AimdSettings) -> None:
        self._target_ns = ms_to_ns(settings.target_ms)
        self._budget_ns = ms_to_ns(settings.target_ms * settings.budget)
        self._add = settings.add
        self._backoff = settings.backoff
        self.rows = 1

    def observe(self, rows: int, took_ns: int) -> None:
        """Grow, shrink or stay."""
        if took_ns > self._target_ns:
            if rows <= self.rows:
                self.rows = max(int(rows * self._backoff), 1)
        elif rows >= self.rows - self._add and took_ns <= self._budget_ns:
            self.rows += self._add


@batch_policy(AimdSettings)
def build(settings: AimdSettings, limits: Limits) -> LearnedSizePolicy:
    """The policy; each partition of the model has its own controller."""
    return LearnedSizePolicy(lambda: AimdSize(settings), settings.max_delay_ms)
