"""Admission: refuse at once what cannot be served in time or space."""

from batcher.booked import BookedWork
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

    A request that is to be evicted rather than answered late is admitted only with places reserved for all its stages
    (`booked`) that keep its deadline, and its cost where that is limited; never as a probe. Of others, those whose cost
    is limited have to be able to cost as little (`PipelineState.least_cost`).
    """

    def __init__(self, limits: Limits, booked: BookedWork | None = None) -> None:
        self._limits = limits
        self._booked = booked
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
        if pipeline.evicts:
            return self._judge_hard(event, pipeline, now_ns)
        if event.max_cost is not None:
            cost = pipeline.least_cost(event.rows, limits.hand_off_ns)
            if cost > event.max_cost:
                return self._reject(event, Outcome.REJECTED_COST, _too_dear(cost, event.max_cost), 0)
        done_ns = self._completion_ns(event, pipeline, now_ns)
        if done_ns <= event.deadline_ns:
            return None
        return self._judge_late(event, pipeline, now_ns, done_ns)

    def _judge_hard(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> RejectRequest | None:
        booked = self._booked
        assert booked is not None, "a scheduler with a pipeline that evicts reserves places"
        refusal = booked.reserve(event, pipeline, now_ns)
        if refusal is not None and self._forgive(pipeline, now_ns):
            booked.learn(stage.model for stage in pipeline.stages if stage.model is not None)
            refusal = booked.reserve(event, pipeline, now_ns)
        if refusal is None:
            return None
        done_ns, cost = refusal
        if done_ns is None or cost is None:
            reason = "no partition that is up holds one of its models"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        if done_ns <= event.deadline_ns and event.max_cost is not None:
            return self._reject(event, Outcome.REJECTED_COST, _too_dear(cost, event.max_cost), 0)
        left_ms = ns_to_ms(max(event.deadline_ns - now_ns, 0))
        reason = f"could be complete in {ns_to_ms(done_ns - now_ns):.1f} ms at the soonest, {left_ms:.1f} ms are left"
        return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)

    def _forgive(self, pipeline: PipelineState, now_ns: int) -> bool:
        """Let the corrections of a pipeline's estimates decay, unless they did so within the probe interval."""
        last_ns = pipeline.last_probe_ns
        if last_ns is not None and now_ns - last_ns < self._limits.probe_interval_ns:
            return False
        pipeline.last_probe_ns = now_ns
        for stage in pipeline.stages:
            if stage.model is not None:
                stage.model.decay()
        return True

    def _judge_late(
        self, event: RequestArrived, pipeline: PipelineState, now_ns: int, done_ns: int
    ) -> RejectRequest | None:
        if self._forgive(pipeline, now_ns):
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
            order_ns = event.deadline_ns - root.tail_ns
            if queue is not None and (order_ns < queue.last_ns or queue.late) and model.by_deadline:
                behind = queue.behind(order_ns)
                rows = queue.rows * behind // max(queue.live, 1)
                start_ns -= int(rows * model.spread_row_ns)
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


def _too_dear(cost: float, max_cost: float) -> str:
    return f"costs {cost:.4g} at least, max_cost is {max_cost:.4g}"
