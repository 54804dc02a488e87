"""Stages that need no partition: combiners, and stages whose outputs may be in the cache."""

import logging
from collections.abc import Callable, Mapping, Sequence

from sluice.batcher.interface.decisions import CombineOutputs, LookUpCache, Member
from sluice.batcher.interface.events import (
    AnyEvent,
    CacheHit,
    CacheMiss,
    CombinationFailed,
    OutputsCombined,
)
from sluice.gateway.executors.base import Executor
from sluice.gateway.observability.traces.trace import PartialJoin
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

    def combine(self, decisions: Sequence[CombineOutputs]) -> None:
        """Run combiners."""
        try:
            combined = self._executor.combine([decision.member for decision in decisions])
        except Exception as error:  # any error ends these requests and nothing else
            combined = [error] * len(decisions)
        for decision, result in zip(decisions, combined, strict=True):
            member = decision.member
            meter = self._opened[member.request].meter
            if isinstance(result, Exception):
                message = f"stage '{meter.stages[member.stage]}': {result}"
                unexpected = None if isinstance(result, ValueError) else result
                logger.warning("request %d: %s", member.request, message, exc_info=unexpected)
                self._report(CombinationFailed(member.request, member.stage, message))
            else:
                meter.stage_ran(member.stage, member.rows)
                confidences, batch_key, joined = result
                if decision.absent:
                    self._note_partial(member, joined)
                self._report(OutputsCombined(member.request, member.stage, confidences, batch_key))

    def _note_partial(self, member: Member, joined: int) -> None:
        """Note that a combiner has joined only some of its members; one may have ended since the scheduler decided."""
        opened = self._opened[member.request]
        config = opened.trace.stages[member.stage]
        if joined < len(config.sources):
            opened.trace.partial += (PartialJoin(config.name, joined, len(config.sources)),)
            opened.meter.partial_joins += 1

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
