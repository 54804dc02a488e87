"""A line in the log for each slow or failed request, at a bounded rate."""

import logging

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.tracing import RequestLogSettings
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.traces.explanation import explain
from sluice.gateway.observability.traces.trace import Trace
from sluice.models.units import INFINITE_NS, NS_PER_S, ms_to_ns

logger = logging.getLogger(__name__)


class RequestLog:
    """Logs the requests that the settings name. A line says how many were left out since the last one."""

    def __init__(self, settings: RequestLogSettings) -> None:
        limit_ms = settings.slower_than_ms
        self._slow_ns = INFINITE_NS if limit_ms is None else ms_to_ns(limit_ms)
        self._failed = settings.failed
        self._lines_per_s = settings.lines_per_s
        self._second_ns = 0
        self._lines = 0
        self._suppressed = 0

    def ended(self, trace: Trace) -> None:
        """Log a request that has its outcome, if it is slow or has failed. A client that left is no failure."""
        outcome = trace.outcome
        assert outcome is not None, "it has ended"
        if trace.ended_ns - trace.arrived_ns <= self._slow_ns and (
            not self._failed or outcome.answered or outcome is Outcome.CANCELLED_CLIENT
        ):
            return
        if trace.ended_ns - self._second_ns >= NS_PER_S:
            self._second_ns, self._lines = trace.ended_ns, 0
        if self._lines >= self._lines_per_s:
            self._suppressed += 1
            return
        self._lines += 1
        self._log(trace)

    def _log(self, trace: Trace) -> None:
        explained = explain(trace, trace.ended_ns)
        fields: dict[str, object] = {"id": explained.id}
        if explained.trace_id:
            fields["trace_id"] = explained.trace_id
        fields |= {
            "pipeline": explained.pipeline,
            "rows": explained.rows,
            "outcome": explained.outcome,
            "total_ms": explained.total_ms,
            "deadline_ms": explained.deadline_ms,
            "cause": explained.cause,
            "why": explained.sentence,
            "stages": [
                {
                    "stage": each.stage,
                    "partition": each.partition,
                    "queue_ms": each.queue_ms,
                    "hand_off_ms": each.hand_off_ms,
                    "compute_ms": each.compute_ms,
                    "return_ms": each.return_ms,
                }
                for each in explained.stages
            ],
        }
        if self._suppressed:
            fields["suppressed"] = self._suppressed
            self._suppressed = 0
        log(logger, logging.WARNING, "request", **fields)
