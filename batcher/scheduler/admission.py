"""Admission: refuse at once what cannot be served in time or space."""

from sluice.batcher.estimates.latency import CORRECTION_BOUNDS
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.speed import decay_corrections
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.prediction.completion import completion_ns
from sluice.batcher.prediction.fair_share import beyond_share
from sluice.batcher.prediction.pipeline_times import predict, unloaded_latency_ns
from sluice.batcher.reservations.reserved_work import ReservedWork
from sluice.batcher.residency.on_demand import Forecast, NoOnDemandLoading, OnDemandLoader
from sluice.batcher.scheduler.memory_shares import MemoryShares
from sluice.batcher.state import UNAVAILABLE_NS, PipelineState
from sluice.models.units import NS_PER_S, ns_to_ms


class Admission:
    """Decides on arrivals by predicted completion, by memory and by the number of requests under way.

    A wrong estimate does not cause refusals for ever. Before a request is refused for its deadline, corrections of the
    latency tables decay, at most once per probe interval. An idle pipeline admits one request per probe interval
    although it is predicted to be late, unless it would be late even with the lowest correction. Such a probe reveals
    an estimate that is too high.

    A request of a pipeline that evicts, or with a limited cost, is never a probe. It is admitted only if slots that
    keep its deadline and its cost can be `reserved` for all its stages. Where pipelines contend for a model, each may
    have as many waiting rows as its share by weight allows, plus the unused shares of the others.

    With a `loader`, a request for missing models is admitted if it is in time once they are loaded.
    """

    def __init__(
        self,
        limits: Limits,
        memory: MemoryShares,
        fleet: Fleet,
        reserved: ReservedWork,
        loader: OnDemandLoader | NoOnDemandLoading,
    ) -> None:
        self._limits = limits
        self._queues = fleet.queues
        self._reserved = reserved
        self._loader = loader
        self._counts_demand = loader.enabled
        self._memory = memory
        self.draining = False

    def judge(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> RejectRequest | None:
        """The rejection of a request, or None when it is admitted."""
        if self._counts_demand:
            pipeline.demand.add(event.rows, now_ns)
        if self.draining:
            return self._reject(event, Outcome.REJECTED_DRAINING, "the server is stopping", NS_PER_S)
        limits = self._limits
        if pipeline.outstanding >= limits.queue_requests:
            reason = f"{limits.queue_requests} requests of this pipeline are under way"
            return self._reject(event, Outcome.REJECTED_QUEUE_FULL, reason, self.backlog_ns(pipeline))
        if (short := self._memory.refusal(pipeline.number, event.memory_bytes)) is not None:
            reason = f"needs {event.memory_bytes} bytes of tensor memory; {short}"
            return self._reject(event, Outcome.REJECTED_MEMORY, reason, self.backlog_ns(pipeline))
        if pipeline.degraded:
            if (forecast := self._loader.forecast(pipeline, now_ns)) is not None:
                return self._judge_cold(event, pipeline, forecast, now_ns)
            if (missing := self._unavailable(pipeline, now_ns)) is not None:
                reason = f"no partition holds model {missing}"
                return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        if pipeline.evicts or event.max_cost is not None:
            return self._judge_hard(event, pipeline, now_ns)
        done_ns = completion_ns(event, pipeline, self._queues, now_ns)
        if done_ns <= event.deadline_ns:
            return None
        if self._reserved.active:
            done_ns = completion_ns(event, pipeline, self._queues, now_ns, self._reserved.soonest_ns)
            if done_ns <= event.deadline_ns:
                return None
        return self._judge_late(event, pipeline, now_ns, done_ns)

    def _judge_cold(
        self, event: RequestArrived, pipeline: PipelineState, forecast: Forecast, now_ns: int
    ) -> RejectRequest | None:
        """Admit a request that is in time after loading its models; no slot can be reserved before they are loaded."""
        loader = self._loader
        if forecast.refusal is not None:
            reason = f"model {forecast.model} is not loaded: {forecast.refusal.reason}"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        if event.max_cost is not None:
            loader.note_rejection(pipeline, 0, now_ns)
            reason = f"model {forecast.model} is not loaded, so its cost is not known"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        done_ns = max(forecast.done_ns, completion_ns(event, pipeline, self._queues, now_ns))
        if done_ns > event.deadline_ns:
            left_ms = ns_to_ms(max(event.deadline_ns - now_ns, 0))
            reason = (
                f"model {forecast.model} is not loaded: predicted to complete in {ns_to_ms(done_ns - now_ns):.1f} ms "
                f"with its load, {left_ms:.1f} ms are left"
            )
            loader.note_rejection(pipeline, event.deadline_ns - now_ns, now_ns)
            return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)
        loader.begin(forecast, now_ns)
        return None

    def _judge_hard(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> RejectRequest | None:
        reserved = self._reserved
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
            reason = "no running partition holds one of its models"
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
                decay_corrections(stage.model)
        return True

    def _judge_late(
        self, event: RequestArrived, pipeline: PipelineState, now_ns: int, done_ns: int
    ) -> RejectRequest | None:
        if self._forgive(pipeline, now_ns):
            hopeful_ns = int(unloaded_latency_ns(pipeline, self._limits.hand_off_ns) * CORRECTION_BOUNDS[0])
            if pipeline.outstanding == 0 and now_ns + hopeful_ns <= event.deadline_ns:
                return None
            predict(pipeline, self._limits.hand_off_ns)
            soonest_ns = self._reserved.soonest_ns if self._reserved.active else None
            done_ns = completion_ns(event, pipeline, self._queues, now_ns, soonest_ns)
            if done_ns <= event.deadline_ns:
                return None
        self._loader.add_replica(pipeline, now_ns)
        allowed_ms = ns_to_ms(max(event.deadline_ns - now_ns, 0))
        reason = f"predicted to complete in {ns_to_ms(done_ns - now_ns):.1f} ms, {allowed_ms:.1f} ms are left"
        return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)

    @staticmethod
    def _unavailable(pipeline: PipelineState, now_ns: int) -> str | None:
        """The first model without a partition, or whose partitions have been lost for too long."""
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
        """The promised work on the busiest of the groups that the pipeline uses."""
        return max((group.backlog_ns for group, _ in pipeline.work.total), default=0)

    @staticmethod
    def _reject(event: RequestArrived, outcome: Outcome, reason: str, retry_after_ns: int) -> RejectRequest:
        return RejectRequest(event.request, outcome, reason, max(retry_after_ns, 0))
