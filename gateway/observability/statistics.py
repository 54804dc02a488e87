"""Statistics of models and pipelines in the form of the protocol: counted once per batch, or once per pipeline request.

The time of a request at a model consists of `queue`, `compute_input` (to the worker), `compute_infer` (in the backend)
and `compute_output` (from the worker). A pipeline counts like an ensemble: one execution per request, whose times are
the sums over its stages.
"""

import enum
from collections.abc import Sequence
from typing import Any

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.traces.trace import BatchTrace, Trace
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_MS


class FailureReason(enum.StrEnum):
    """The reason of a failed request (a metric label); OTHER is any failure of a pipeline except cancellation."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


_REASONS = {
    Outcome.CANCELLED_CLIENT: FailureReason.CANCELED,
    Outcome.FAILED_BACKEND: FailureReason.BACKEND,
    Outcome.FAILED_WORKER_LOST: FailureReason.BACKEND,
    Outcome.FAILED_UNAVAILABLE: FailureReason.OTHER,
}


class PhaseTimes:
    """A number of executions, and nanoseconds of their phases."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = self.input_ns = self.infer_ns = self.output_ns = 0

    def add(self, count: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Count executions, with their total times."""
        self.count += count
        self.input_ns += input_ns
        self.infer_ns += infer_ns
        self.output_ns += output_ns

    def report(self) -> dict[str, Any]:
        """The counts in the form of the protocol."""
        return {
            "compute_input": _duration(self.count, self.input_ns),
            "compute_infer": _duration(self.count, self.infer_ns),
            "compute_output": _duration(self.count, self.output_ns),
        }


class ModelStatistics:
    """The counts of one model or pipeline; none of them ever decreases."""

    __slots__ = (
        "batches",
        "cache_hit_ns",
        "cache_hits",
        "cache_miss_ns",
        "cache_misses",
        "execution_count",
        "failed_ns",
        "failures",
        "inference_count",
        "last_ns",
        "queue_ns",
        "requests",
        "success_ns",
    )

    def __init__(self) -> None:
        self.inference_count = self.execution_count = 0
        self.success_ns = self.queue_ns = self.failed_ns = self.last_ns = 0
        self.cache_hits = self.cache_hit_ns = self.cache_misses = self.cache_miss_ns = 0
        self.requests = PhaseTimes()
        self.batches: dict[int, PhaseTimes] = {}
        self.failures = dict.fromkeys(FailureReason, 0)

    def batch_ran(self, run: BatchTrace, requests: int, rows: int, ready_ns: int) -> None:
        """Count a batch.

        `requests` are those that are still wanted, with `rows` in total; `ready_ns` is the sum of the times when they
        were ready.
        """
        startable_ns, started_ns, ended_ns, reported_ns = (
            run.startable_ns,
            run.started_ns,
            run.ended_ns,
            run.reported_ns,
        )
        input_ns, infer_ns, output_ns = started_ns - startable_ns, ended_ns - started_ns, reported_ns - ended_ns
        self.execution_count += 1
        self.last_ns = reported_ns
        self.inference_count += rows
        self.queue_ns += requests * startable_ns - ready_ns
        self.success_ns += requests * reported_ns - ready_ns
        self._batch(run.batch.rows).add(1, input_ns, infer_ns, output_ns)
        self.requests.add(requests, requests * input_ns, requests * infer_ns, requests * output_ns)

    def pipeline_completed(self, trace: Trace) -> None:
        """Count a request of several stages as one execution."""
        input_ns = infer_ns = output_ns = 0
        for run in trace.runs:
            if not run.failed:
                started_ns, ended_ns = run.started_ns, run.ended_ns
                input_ns += started_ns - run.startable_ns
                infer_ns += ended_ns - started_ns
                output_ns += run.reported_ns - ended_ns
        self.queue_ns += trace.queue_ns
        self.execution_count += 1
        self.last_ns = trace.ended_ns
        self.inference_count += trace.arrival.rows
        self.success_ns += trace.ended_ns - trace.arrived_ns
        self._batch(trace.arrival.rows).add(1, input_ns, infer_ns, output_ns)
        self.requests.add(1, input_ns, infer_ns, output_ns)

    def cache_hit(self, duration_ns: int) -> None:
        """Count a request that was answered from the cache, and the time that took."""
        self.cache_hits += 1
        self.cache_hit_ns += duration_ns
        self.success_ns += duration_ns

    def cache_miss(self, duration_ns: int) -> None:
        """Count a request that the cache could not answer, and the time to look it up and to store the answer."""
        self.cache_misses += 1
        self.cache_miss_ns += duration_ns

    def failed(self, reason: FailureReason, duration_ns: int) -> None:
        """Count a request that got no answer."""
        self.failures[reason] += 1
        self.failed_ns += duration_ns

    def report(
        self, name: str, version: str, epoch_ns: int, memory_usage: Sequence[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        """An entry of the protocol's `model_stats`; `epoch_ns` is the time of day at 0 of the clock."""
        requests = self.requests
        answered = requests.count + self.cache_hits
        return {
            "name": name,
            "version": version,
            "last_inference": (epoch_ns + self.last_ns) // NS_PER_MS if self.last_ns else 0,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _duration(answered, self.success_ns),
                "fail": _duration(sum(self.failures.values()), self.failed_ns),
                "queue": _duration(answered, self.queue_ns),
                **requests.report(),
                "cache_hit": _duration(self.cache_hits, self.cache_hit_ns),
                "cache_miss": _duration(self.cache_misses, self.cache_miss_ns),
            },
            "response_stats": {},
            "batch_stats": [{"batch_size": rows, **self.batches[rows].report()} for rows in sorted(self.batches)],
            "memory_usage": list(memory_usage),
        }

    def _batch(self, rows: int) -> PhaseTimes:
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = PhaseTimes()
        return batch


class Statistics:
    """The statistics of all models and pipelines, by key; the revisions of a version are counted together."""

    def __init__(self) -> None:
        self._models: dict[str, ModelStatistics] = {}

    def of(self, key: str) -> ModelStatistics:
        """The counts of a model or pipeline."""
        statistics = self._models.get(key)
        if statistics is None:
            public = public_key(key)
            statistics = self._models[key] = ModelStatistics() if public == key else self.of(public)
        return statistics

    def forget(self, key: str) -> None:
        """Remove a revision; its counts stay with its version."""
        if public_key(key) != key:
            self._models.pop(key, None)

    def request_ended(self, trace: Trace) -> None:
        """Count a failed request, or one of a pipeline; `batch_ran` and `cache_hit` count all others."""
        outcome = trace.outcome
        pipeline = trace.arrival.pipeline
        assert outcome is not None
        if outcome.answered:
            if trace.is_pipeline:
                self.of(pipeline).pipeline_completed(trace)
            return
        reason = _REASONS.get(outcome, FailureReason.REJECTED)
        duration_ns = trace.ended_ns - trace.arrived_ns
        if trace.is_pipeline:
            if trace.runs and trace.runs[-1].failed:
                self.of(trace.runs[-1].batch.model).failed(reason, duration_ns)
            reason = reason if reason is FailureReason.CANCELED else FailureReason.OTHER
        self.of(pipeline).failed(reason, duration_ns)


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
