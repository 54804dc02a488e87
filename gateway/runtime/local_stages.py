"""Stages that need no partition: combiners, and stages whose outputs may be in the cache."""

import logging
from collections.abc import Callable, Mapping, Sequence

from sluice.batcher.interface.decisions import LookUpCache, Member
from sluice.batcher.interface.events import (
    AnyEvent,
    CacheHit,
    CacheMiss,
    CombinationFailed,
    OutputsCombined,
)
from sluice.gateway.executors.base import Executor
from sluice.gateway.runtime.submission import Submission

logger = logging.getLogger(__name__)


class LocalStages:
    """Carries out the decisions about combiners and cache look-ups at once.

    `opened` are the requests under way, and events go to `report`.
    """

    def __init__(
        self, opened: Mapping[int, Submission], executor: Executor, report: Callable[[AnyEvent], None]
    ) -> None:
        self._opened = opened
        self._executor = executor
        self._report = report

    def combine(self, members: Sequence[Member]) -> None:
        """Run the combiners of members."""
        try:
            combined = self._executor.combine(members)
        except Exception as error:  # any error ends these requests and nothing else
            combined = [error] * len(members)
        for member, result in zip(members, combined, strict=True):
            meter = self._opened[member.request].meter
            if isinstance(result, Exception):
                message = f"stage '{meter.stages[member.stage]}': {result}"
                unexpected = None if isinstance(result, ValueError) else result
                logger.warning("request %d: %s", member.request, message, exc_info=unexpected)
                self._report(CombinationFailed(member.request, member.stage, message))
            else:
                meter.stage_ran(member.stage, member.rows)
                self._report(OutputsCombined(member.request, member.stage, *result))

    def look_up_cache(self, decision: LookUpCache) -> None:
        """Look a stage's outputs up in the cache."""
        member = decision.member
        try:
            batch_key = self._executor.look_up_cache(member)
        except Exception:  # whatever the error is, the stage can still run
            logger.exception("request %d: stage %d could not be looked up", member.request, member.stage)
            batch_key = None
        if batch_key is None:
            self._report(CacheMiss(member.request, member.stage))
        else:
            self._report(CacheHit(member.request, member.stage, batch_key))
