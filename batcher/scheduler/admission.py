"""Admission: refuse at once what cannot be served in time or space."""

from sluice.batcher.estimates.latency import CORRECTION_BOUNDS
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.prediction.fair_share import beyond_share, rows_ahead
from sluice.batcher.queues.progress import request_batch_key
from sluice.batcher.reservations.reserved_work import ReservedWork
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.state.model import UNAVAILABLE_NS
from sluice.batcher.state.pipeline import PipelineState
from sluice.models.units import NS_PER_S, ns_to_ms

LITTLE = 0.25
"""Share of the time left that a request may have to wait for others until its pipeline's share of a model matters."""


class Admission:
    """Decides on arrivals by predicted completion, by memory and by the number of requests under way.

    No lock-in: before a request is refused for its deadline, corrections of the latency tables decay (at most once a
    probe interval), and a pipeline with nothing under way admits one request a probe interval that is predicted to be
    late, unless it would be so with the lowest correction: an estimate that is too high is found out.

    A request that is to be evicted rather than answered late, or whose cost is limited, is admitted only with places
    reserved for all its stages (`reserved`) that keep its deadline and its cost; never as a probe. Where pipelines
    contend for a model, what one may have waiting there is its share by weight, and what the others leave of theirs.

    With `cold_starts` a request for models that no partition holds is admitted if it is in time once they are loaded.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.reserved: ReservedWork | None = None
        self.cold_starts: OnDemandLoader | None = None
        self.memory_bytes = 0
        self.draining = False

    def judge(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> RejectRequest | None:
        """The rejection of a request, or None when it is admitted."""
        if self.cold_starts is not None:
            pipeline.demand.add(event.rows, now_ns)
        if self.draining:
            return self._reject(event, Outcome.REJECTED_DRAINING, "the server is stopping", NS_PER_S)
        limits = self._limits
        if pipeline.outstanding >= limits.queue_requests:
            reason = f"{limits.queue_requests} requests of this pipeline are under way"
            return self._reject(event, Outcome.REJECTED_QUEUE_FULL, reason, self.backlog_ns(pipeline))
        if self.memory_bytes + event.memory_bytes > limits.memory_bytes:
            reason = (
                f"its tensors need {event.memory_bytes} bytes, and of {limits.memory_bytes} bytes "
                f"{limits.memory_bytes - self.memory_bytes} are free"
            )
            return self._reject(event, Outcome.REJECTED_MEMORY, reason, self.backlog_ns(pipeline))
        if pipeline.degraded and self.cold_starts is not None and self.cold_starts.missing(pipeline):
            return self._judge_cold(event, pipeline, self.cold_starts, now_ns)
        if pipeline.degraded and (missing := self._unavailable(pipeline, now_ns)) is not None:
            reason = f"no partition holds model {missing}"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        if pipeline.evicts or event.max_cost is not None:
            return self._judge_hard(event, pipeline, now_ns)
        done_ns = self._completion_ns(event, pipeline, now_ns)
        if done_ns <= event.deadline_ns:
            return None
        if self.reserved is not None:
            done_ns = self._completion_ns(event, pipeline, now_ns, self.reserved)
            if done_ns <= event.deadline_ns:
                return None
        return self._judge_late(event, pipeline, now_ns, done_ns)

    def _judge_cold(
        self, event: RequestArrived, pipeline: PipelineState, cold_starts: OnDemandLoader, now_ns: int
    ) -> RejectRequest | None:
        """Admit what is in time although models have to be loaded first; no place can be reserved before they are."""
        forecast = cold_starts.forecast(pipeline, now_ns)
        if forecast.refusal is not None:
            reason = f"model {forecast.model} is not loaded: {forecast.refusal.reason}"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        if event.max_cost is not None:
            cold_starts.note_rejection(pipeline, 0, now_ns)
            reason = f"model {forecast.model} is not loaded, so that no cost can be promised"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        done_ns = max(forecast.done_ns, self._completion_ns(event, pipeline, now_ns))
        if done_ns > event.deadline_ns:
            left_ms = ns_to_ms(max(event.deadline_ns - now_ns, 0))
            reason = (
                f"model {forecast.model} is not loaded: with that predicted to complete in "
                f"{ns_to_ms(done_ns - now_ns):.1f} ms, {left_ms:.1f} ms are left"
            )
            cold_starts.note_rejection(pipeline, event.deadline_ns - now_ns, now_ns)
            return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)
        cold_starts.begin(forecast, now_ns)
        return None

    def _judge_hard(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> RejectRequest | None:
        reserved = self.reserved
        assert reserved is not None, "a scheduler with a pipeline that evicts, or with limits of cost, reserves places"
        left_ns = max(event.deadline_ns - now_ns, 0)
        if pipeline.shared and (beyond := beyond_share(pipeline, event.rows, left_ns, now_ns)) is not None:
            model, took_ns = beyond
            reason = (
                f"could be complete in {ns_to_ms(took_ns):.1f} ms with its pipeline's share of model "
                f"{model.config.key}, {ns_to_ms(left_ns):.1f} ms are left"
            )
            return self._reject(event, Outcome.REJECTED_DEADLINE, reason, took_ns - left_ns)
        refusal = reserved.reserve(event, pipeline, now_ns)
        if refusal is not None and self._forgive(pipeline, now_ns):
            reserved.learn(stage.model for stage in pipeline.stages if stage.model is not None)
            reserved.forgive()
            refusal = reserved.reserve(event, pipeline, now_ns)
        if refusal is None:
            return None
        done_ns, cost, hopeless = refusal
        if done_ns is None or cost is None:
            reason = "no partition that is up holds one of its models"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        if done_ns <= event.deadline_ns and event.max_cost is not None:
            reason = f"costs {cost:.4g} at least, max_cost is {event.max_cost:.4g}"
            return RejectRequest(event.request, Outcome.REJECTED_COST, reason, None if hopeless else NS_PER_S)
        soonest_ms, left_ms = ns_to_ms(done_ns - now_ns), ns_to_ms(left_ns)
        reason = f"could be complete in {soonest_ms:.1f} ms at the soonest, {left_ms:.1f} ms are left"
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
            hopeful_ns = int(pipeline.unloaded_latency_ns(self._limits.hand_off_ns) * CORRECTION_BOUNDS[0])
            if pipeline.outstanding == 0 and now_ns + hopeful_ns <= event.deadline_ns:
                return None
            pipeline.refresh(self._limits.hand_off_ns)
            done_ns = self._completion_ns(event, pipeline, now_ns, self.reserved)
            if done_ns <= event.deadline_ns:
                return None
        if self.cold_starts is not None:
            self.cold_starts.add_replica(pipeline, now_ns)
        allowed_ms = ns_to_ms(max(event.deadline_ns - now_ns, 0))
        reason = f"predicted to complete in {ns_to_ms(done_ns - now_ns):.1f} ms, {allowed_ms:.1f} ms are left"
        return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)

    @staticmethod
    def _completion_ns(
        event: RequestArrived, pipeline: PipelineState, now_ns: int, reserved: ReservedWork | None = None
    ) -> int:
        """When the request is predicted to be complete.

        Every stage comes after the work that is promised before it on its groups, and then what follows by itself. With
        `reserved` it goes before what has its place after the stage's deadline.
        """
        done_ns = now_ns + pipeline.critical_path_ns
        for stage, model, rest_ns, row_ns in pipeline.steps:
            groups = model.groups
            start_ns = groups[0].start_after_backlog_ns(now_ns)
            if reserved is not None:
                order_ns = event.deadline_ns - stage.remaining_path_ns
                start_ns = min([reserved.soonest_ns(group, order_ns, now_ns) for group in groups])
            elif len(groups) > 1:
                start_ns = min(start_ns, *[group.start_after_backlog_ns(now_ns) for group in groups[1:]])
            queue = stage.queue
            if queue is None and not stage.config.source_keyed:
                queue = model.queues.get(request_batch_key(event, stage.config))
            if queue is not None:
                order_ns = event.deadline_ns - stage.remaining_path_ns
                if (
                    pipeline.shared
                    and queue.live
                    and start_ns - now_ns > LITTLE * (left_ns := event.deadline_ns - rest_ns - now_ns)
                    and queue.flows
                ):
                    ahead = rows_ahead(pipeline, model, queue, order_ns, max(left_ns, 0), now_ns)
                    start_ns += int((ahead - queue.rows) * row_ns)
                elif order_ns < queue.last_ns or queue.late:
                    if model.by_deadline:
                        start_ns -= int(queue.rows * queue.behind(order_ns) // max(queue.live, 1) * row_ns)
                    else:
                        start_ns -= int(queue.rows_behind(event.priority) * row_ns)
            if start_ns + rest_ns > done_ns:
                done_ns = start_ns + rest_ns
        return done_ns

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
    def backlog_ns(pipeline: PipelineState) -> int:
        """The work that is promised on the busiest of the groups that the pipeline uses."""
        return max((group.backlog_ns for group, _ in pipeline.work.total), default=0)

    @staticmethod
    def _reject(event: RequestArrived, outcome: Outcome, reason: str, retry_after_ns: int) -> RejectRequest:
        return RejectRequest(event.request, outcome, reason, max(retry_after_ns, 0))
