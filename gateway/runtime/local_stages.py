"""Stages that need no partition: combiners, and those of which it is known already what they make."""

import logging
from collections.abc import Callable, Mapping

from sluice.batcher.interface.decisions import CombineOutputs, RecallOutputs
from sluice.batcher.interface.events import (
    AnyEvent,
    CombinationFailed,
    OutputsCombined,
    OutputsRecalled,
    OutputsUnknown,
)
from sluice.gateway.executors.base import Executor
from sluice.gateway.runtime.submission import Submission

logger = logging.getLogger(__name__)


class LocalStages:
    """Does at once what the scheduler orders of them; `opened` are the requests under way, events go to `post`."""

    def __init__(self, opened: Mapping[int, Submission], executor: Executor, post: Callable[[AnyEvent], None]) -> None:
        self._opened = opened
        self._executor = executor
        self._post = post

    def combine(self, decision: CombineOutputs) -> None:
        """Run a combiner."""
        member = decision.member
        meter = self._opened[member.request].meter
        try:
            verdicts, batch_key = self._executor.combine(member)
        except Exception as error:  # whatever it is, it ends this request and nothing else
            message = f"stage '{meter.stages[member.stage]}': {error}"
            logger.warning("request %d: %s", member.request, message, exc_info=not isinstance(error, ValueError))
            self._post(CombinationFailed(member.request, member.stage, message))
        else:
            meter.stage_ran(member.stage, member.rows)
            self._post(OutputsCombined(member.request, member.stage, verdicts, batch_key))

    def recall(self, decision: RecallOutputs) -> None:
        """See whether the outputs of a stage are known."""
        member = decision.member
        try:
            batch_key = self._executor.look_up_cache(member)
        except Exception:  # whatever it is, the stage can still run
            logger.exception("request %d: stage %d could not be looked up", member.request, member.stage)
            batch_key = None
        if batch_key is None:
            self._post(OutputsUnknown(member.request, member.stage))
        else:
            self._post(OutputsRecalled(member.request, member.stage, batch_key))
