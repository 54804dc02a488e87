"""Admission: refuse at once what cannot be served in time or space."""

from batcher.config import Limits
from batcher.decisions import RejectRequest
from batcher.estimate import CORRECTION_BOUNDS
from batcher.events import RequestArrived
from batcher.outcome import Outcome
from batcher.plan import PipelineState
from models.units import NS_PER_S, ns_to_ms

UNAVAILABLE_NS = 5 * NS_PER_S
"""A model whose last worker has been gone for longer than this is unavailable, not about to come back."""


class Admission:
    """Decides on arrivals by predicted completion, by memory and by the number of requests under way.

    No lock-in: before a request is refused for its deadline, corrections of the latency tables decay (at most once a
    probe interval), and a pipeline with nothing under way admits one request a probe interval that is predicted to be
    late, unless it would be so with the lowest correction: an estimate that is too high is found out.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.memory_bytes = 0
        self.draining = False

    def judge(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> RejectRequest | None:
        """The rejection of a request, or None when it is admitted."""
        if self.draining:
            return self._reject(event, Outcome.REJECTED_DRAINING, "the server is stopping", NS_PER_S)
        limits = self._limits
        if pipeline.outstanding >= limits.queue_requests:
            reason = f"Exceeds maximum queue size: {limits.queue_requests} requests of this pipeline are under way"
            return self._reject(event, Outcome.REJECTED_QUEUE_FULL, reason, self._backlog_ns(pipeline))
        if self.memory_bytes + event.memory_bytes > limits.memory_bytes:
            reason = (
                f"its tensors need {event.memory_bytes} bytes, and of {limits.memory_bytes} bytes "
                f"{limits.memory_bytes - self.memory_bytes} are free"
            )
            return self._reject(event, Outcome.REJECTED_MEMORY, reason, self._backlog_ns(pipeline))
        if pipeline.degraded and (missing := self._unavailable(pipeline, now_ns)) is not None:
            reason = f"no partition holds model {missing}"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        done_ns = self._completion_ns(event, pipeline, now_ns)
        if done_ns <= event.deadline_ns:
            return None
        return self._judge_late(event, pipeline, now_ns, done_ns)

    def _judge_late(
        self, event: RequestArrived, pipeline: PipelineState, now_ns: int, done_ns: int
    ) -> RejectRequest | None:
        interval_ns = self._limits.probe_interval_ns
        due = pipeline.last_probe_ns is None or now_ns - pipeline.last_probe_ns >= interval_ns
        if due:
            pipeline.last_probe_ns = now_ns
            for stage in pipeline.stages:
                if stage.model is not None:
                    stage.model.decay()
            hopeful_ns = int(pipeline.lone_ns(self._limits.hand_off_ns) * CORRECTION_BOUNDS[0])
            if pipeline.outstanding == 0 and now_ns + hopeful_ns <= event.deadline_ns:
                return None
            pipeline.refresh(self._limits.hand_off_ns)
            done_ns = self._completion_ns(event, pipeline, now_ns)
            if done_ns <= event.deadline_ns:
                return None
        allowed_ms = ns_to_ms(max(event.deadline_ns - now_ns, 0))
        reason = f"predicted to complete in {ns_to_ms(done_ns - now_ns):.1f} ms, {allowed_ms:.1f} ms are left"
        return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)

    @staticmethod
    def _completion_ns(event: RequestArrived, pipeline: PipelineState, now_ns: int) -> int:
        """When the request is predicted to be complete: after the work promised before it, then its longest path."""
        latest_ns = now_ns
        for root in pipeline.roots:
            model = root.model
            assert model is not None, "a combiner has sources"
            pools = model.pools
            start_ns = pools[0].start_after_backlog_ns(now_ns)
            if len(pools) > 1:
                start_ns = min(start_ns, *[pool.start_after_backlog_ns(now_ns) for pool in pools[1:]])
            queue = root.queue if root.queue is not None else model.queues.get(event.batch_key)
            if queue is not None and event.deadline_ns - root.tail_ns < queue.last_ns and model.by_deadline:
                behind = queue.behind(event.deadline_ns - root.tail_ns)
                rows = queue.rows * behind // max(queue.live, 1)
                start_ns -= rows * model.row_ns(model.pools[0].kind) // model.hosts
            if start_ns > latest_ns:
                latest_ns = start_ns
        return latest_ns + pipeline.path_ns

    @staticmethod
    def _unavailable(pipeline: PipelineState, now_ns: int) -> str | None:
        """The first model that no partition holds, or whose partitions have been gone for too long."""
        for stage in pipeline.stages:
            model = stage.model
            if model is not None and not any(
                host.ready or (host.lost_ns is not None and now_ns - host.lost_ns < UNAVAILABLE_NS)
                for host in model.partitions
            ):
                return model.config.key
        return None

    @staticmethod
    def _backlog_ns(pipeline: PipelineState) -> int:
        return max((pool.backlog_ns for pool, _ in pipeline.work.total), default=0)

    @staticmethod
    def _reject(event: RequestArrived, outcome: Outcome, reason: str, retry_after_ns: int) -> RejectRequest:
        return RejectRequest(event.request, outcome, reason, max(retry_after_ns, 0))
