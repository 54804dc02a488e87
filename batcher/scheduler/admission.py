"""Admission: refuse at once what cannot be served in time or space."""

from collections.abc import Sequence

from sluice.batcher.estimates.latency import CORRECTION_BOUNDS
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.member_table import most_planned_ns
from sluice.batcher.fleet.partition_group import start_after_backlog_ns
from sluice.batcher.fleet.speed import decay_corrections
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.places.places import NO_PLACES, Offer, Places, Refusal
from sluice.batcher.places.variants import Choice
from sluice.batcher.prediction.pipeline_times import predict, unloaded_latency_ns
from sluice.batcher.residency.on_demand import Forecast, NoOnDemandLoading, OnDemandLoader
from sluice.batcher.scaling.scaler import NoScaler, PartitionStart, Scaler
from sluice.batcher.scheduler.loop_delay import LoopDelay
from sluice.batcher.scheduler.memory_shares import MemoryShares
from sluice.batcher.state import UNAVAILABLE_NS, PipelineState
from sluice.models.units import NS_PER_S, ns_to_ms


class Admission:
    """Decides on arrivals by predicted completion, by memory and by the number of requests under way.

    What has waited too long for the driver's loop is refused before (`LoopDelay`).

    A wrong estimate does not cause refusals for ever. Before a request is refused for its deadline, corrections of the
    latency tables that no batch confirmed decay, at most once per probe interval. An idle pipeline admits one request
    per probe interval although it is predicted to be late, if partitions are idle and it may be in time with the lowest
    correction. Such a probe reveals an estimate that is too high.

    A request of a pipeline that evicts, or with a limited cost or an accuracy, is never a probe.

    A request of a sequence has no places, and is never refused for its deadline: its sequence would lack its part.

    With a `loader`, a request for missing models is admitted if it is in time once they are loaded. With a `scaler`,
    the same holds for a request that needs the first partition of a class, which is started in any case.
    """

    def __init__(
        self,
        limits: Limits,
        memory: MemoryShares,
        fleet: Fleet,
        places: Places,
        loader: OnDemandLoader | NoOnDemandLoading,
        scaler: Scaler | NoScaler,
    ) -> None:
        self._limits = limits
        self._places = places
        self._loader = loader
        self._scaler = scaler
        self._counts_demand = loader.enabled
        self._memory = memory
        self.loop_delay = LoopDelay(limits.queue_requests)
        self.draining = False

    def judge(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> RejectRequest | Offer:
        """The places of a request that is admitted, or its rejection."""
        if self._counts_demand:
            self._count_demand(event, pipeline, now_ns)
        if self.draining and not event.is_call:
            return self._reject(event, Outcome.REJECTED_DRAINING, "the server is stopping", NS_PER_S)
        wait_ns = 0
        if not self.loop_delay.is_over:
            delay = self.loop_delay.judge(event, now_ns)
            if isinstance(delay, RejectRequest):
                self._places.count(event, pipeline, now_ns)
                return delay
            wait_ns = delay
        if event.not_before_ns > now_ns:
            wait_ns = max(wait_ns, event.not_before_ns - now_ns)
        limits = self._limits
        if pipeline.outstanding >= limits.queue_requests:
            reason = f"{limits.queue_requests} requests of this pipeline are under way"
            return self._reject(event, Outcome.REJECTED_QUEUE_FULL, reason, self.backlog_ns(pipeline))
        nbytes = event.memory_bytes
        if nbytes and (short := self._memory.refusal(pipeline.number, nbytes)) is not None:
            reason = f"needs {nbytes} bytes of tensor memory; {short}"
            return self._reject(event, Outcome.REJECTED_MEMORY, reason, self.backlog_ns(pipeline))
        if event.min_accuracy and not self._places.variants.choices(pipeline, event.min_accuracy):
            return self._judge_accurate(event, pipeline, now_ns, wait_ns)
        if (
            pipeline.degraded
            and not event.min_accuracy
            and (judged := self._judge_degraded(event, pipeline, now_ns, wait_ns)) is not None
        ):
            return judged
        self._places.count(event, pipeline, now_ns)
        if pipeline.has_sequences:
            return NO_PLACES
        places = self._places.find(event, pipeline, now_ns, wait_ns)
        if isinstance(places, Offer):
            return places
        return self._judge_late(event, pipeline, now_ns, places, wait_ns)

    def _judge_degraded(
        self, event: RequestArrived, pipeline: PipelineState, now_ns: int, wait_ns: int
    ) -> RejectRequest | Offer | None:
        """Judge a request whose models are not all there; None if they are there, or soon."""
        forecast = self._loader.forecast(pipeline, now_ns)
        if forecast is None or forecast.refusal is not None:
            start = self._scaler.forecast(pipeline, now_ns)
            if start is not None:
                return self._judge_start(event, start, now_ns)
        if forecast is not None:
            return self._judge_cold(event, pipeline, forecast, now_ns, wait_ns)
        if (missing := self._unavailable(pipeline, now_ns)) is not None:
            reason = f"no partition holds model {missing}"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        return None

    def _count_demand(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> None:
        """Count a request as demand of its pipeline, or of the models that it asks for by their accuracy."""
        variants = self._places.variants
        choices: Sequence[Choice] = ()
        if event.min_accuracy:
            choices = variants.choices(pipeline, event.min_accuracy) or variants.to_load(pipeline, event.min_accuracy)
        if not choices:
            pipeline.demand.add(event.rows, now_ns)
            return
        for model, reach in zip(choices[0], pipeline.reach, strict=True):
            if model is not None:
                model.demand.add(event.rows * reach, now_ns)

    def _judge_accurate(
        self, event: RequestArrived, pipeline: PipelineState, now_ns: int, wait_ns: int
    ) -> RejectRequest | Offer:
        """Judge a request for an accuracy that no variant on a partition has: the cheapest one that has it is loaded.

        The next one is where no partition can load that.
        """
        refused: Forecast | None = None
        for models in self._places.variants.to_load(pipeline, event.min_accuracy):
            forecast = self._loader.forecast(pipeline, now_ns, models)
            if forecast is not None and forecast.refusal is None:
                return self._judge_cold(event, pipeline, forecast, now_ns, wait_ns, models)
            refused = refused or forecast
        if refused is not None:
            return self._judge_cold(event, pipeline, refused, now_ns, wait_ns)
        reason = f"no partition holds models with an accuracy of {event.min_accuracy:g} or more for all stages"
        return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)

    def _judge_cold(
        self,
        event: RequestArrived,
        pipeline: PipelineState,
        forecast: Forecast,
        now_ns: int,
        wait_ns: int,
        variants: Choice = (),
    ) -> RejectRequest | Offer:
        """Admit a request that is in time after loading its models, those of the stages or the `variants`.

        It has places where these are being loaded, or none if it is not certain yet where that is.
        """
        loader = self._loader
        what = f"model {forecast.model} is not loaded"
        if event.min_accuracy:
            what = f"model {forecast.model}, for an accuracy of {event.min_accuracy:g} or more, is not loaded"
        if forecast.refusal is not None:
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, f"{what}: {forecast.refusal.reason}", NS_PER_S)
        if event.max_cost is not None:
            loader.note_rejection(pipeline, 0, now_ns, variants)
            reason = f"{what}, so its cost is not known"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, NS_PER_S)
        done_ns = forecast.done_ns
        for stage, model, rest_ns in pipeline.steps:
            if not variants or variants[stage.index] is model:
                done_ns = max(done_ns, min(start_after_backlog_ns(group, now_ns) for group in model.groups) + rest_ns)
        places = Offer([], 0, 0, variants) if variants else NO_PLACES
        if done_ns <= event.deadline_ns and forecast.coming:
            found = self._places.find_after_loads(event, pipeline, forecast.coming, now_ns, wait_ns)
            if isinstance(found, Offer):
                places = found
            else:
                done_ns = found.done_ns + wait_ns
        if done_ns > event.deadline_ns:
            left_ms = ns_to_ms(max(event.deadline_ns - now_ns, 0))
            reason = (
                f"{what}: predicted to complete in {ns_to_ms(done_ns - now_ns):.1f} ms "
                f"with its load, {left_ms:.1f} ms are left"
            )
            loader.note_rejection(pipeline, event.deadline_ns - now_ns, now_ns, variants)
            return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)
        loader.begin(event.request, forecast, now_ns)
        return places

    def _judge_start(self, event: RequestArrived, start: PartitionStart, now_ns: int) -> RejectRequest | Offer:
        """Admit a request that is in time after the start of a partition; it has no place before that is up."""
        what = f"model {start.model} waits for a partition of class {start.name}, which is being started"
        if event.max_cost is not None:
            reason = f"{what}, so its cost is not known"
            return self._reject(event, Outcome.REJECTED_UNAVAILABLE, reason, start.done_ns - now_ns)
        if start.done_ns <= event.deadline_ns:
            return NO_PLACES
        done_ms, left_ms = ns_to_ms(start.done_ns - now_ns), ns_to_ms(max(event.deadline_ns - now_ns, 0))
        reason = f"{what}: predicted to complete in {done_ms:.0f} ms, {left_ms:.1f} ms are left"
        return self._reject(event, Outcome.REJECTED_DEADLINE, reason, start.done_ns - event.deadline_ns)

    def _forgive(self, pipeline: PipelineState, now_ns: int) -> bool:
        """Let the corrections of a pipeline's estimates decay, unless they did so within the probe interval."""
        last_ns = pipeline.last_probe_ns
        if last_ns is not None and now_ns - last_ns < self._limits.probe_interval_ns:
            return False
        pipeline.last_probe_ns = now_ns
        if not pipeline.outstanding:
            self._places.forgive(pipeline)
        for stage in pipeline.stages:
            if stage.model is not None:
                decay_corrections(stage.model)
        self._places.changed()
        return True

    def _judge_late(
        self, event: RequestArrived, pipeline: PipelineState, now_ns: int, refusal: Refusal, wait_ns: int
    ) -> RejectRequest | Offer:
        limits = self._limits
        if self._forgive(pipeline, now_ns):
            hopeful_ns = int(unloaded_latency_ns(pipeline, limits.hand_off_ns) * CORRECTION_BOUNDS[0])
            is_plain = event.max_cost is None and not event.min_accuracy
            may_probe = pipeline.outstanding == 0 and not pipeline.evicts and is_plain
            if (
                may_probe
                and max(now_ns, event.not_before_ns) + hopeful_ns <= event.deadline_ns
                and self._has_idle(pipeline)
            ):
                return NO_PLACES
            predict(pipeline, limits.hand_off_ns)
            offer = self._places.find(event, pipeline, now_ns, wait_ns)
            if isinstance(offer, Offer):
                return offer
            refusal = offer
        done_ns = refusal.done_ns + wait_ns
        left_ns = max(event.deadline_ns - now_ns, 0)
        left_ms, soonest_ms = ns_to_ms(left_ns), ns_to_ms(done_ns - now_ns)
        if refusal.cost is not None:
            reason = f"costs {refusal.cost:.4g} at least, max_cost is {event.max_cost:.4g}"
            return RejectRequest(event.request, Outcome.REJECTED_COST, reason, None)
        self._loader.add_replica(pipeline, now_ns)
        if refusal.wait_ns:
            reason = f"its batch would be too small for the load, and larger if opened later; {left_ms:.1f} ms are left"
            return self._reject(event, Outcome.REJECTED_DEADLINE, reason, refusal.wait_ns)
        if refusal.is_beyond_share:
            reason = f"could be complete in {soonest_ms:.1f} ms with its fair share, {left_ms:.1f} ms are left"
        else:
            reason = f"predicted to complete in {soonest_ms:.1f} ms, {left_ms:.1f} ms are left"
        return self._reject(event, Outcome.REJECTED_DEADLINE, reason, done_ns - event.deadline_ns)

    @staticmethod
    def _has_idle(pipeline: PipelineState) -> bool:
        """True if each stage has an idle partition, so that a probe delays no other request."""
        models = (stage.model for stage in pipeline.stages if stage.model is not None)
        return all(
            any(not host.batches and not host.planned for group in model.groups for host in group.partitions.values())
            for model in models
        )

    @staticmethod
    def _unavailable(pipeline: PipelineState, now_ns: int) -> str | None:
        """The first model without a partition, or whose partitions have been lost for too long."""
        for stage in pipeline.stages:
            model = stage.model
            if model is None or model.served:
                continue
            hosts = (host for group in model.groups for host in group.partitions.values())
            if not any(host.lost_ns is not None and now_ns - host.lost_ns < UNAVAILABLE_NS for host in hosts):
                return model.config.key
        return None

    @staticmethod
    def backlog_ns(pipeline: PipelineState) -> int:
        """The planned work on the busiest of the partitions that the pipeline may use."""
        models = (stage.model for stage in pipeline.stages if stage.model is not None)
        return max((most_planned_ns(group) for model in models for group in model.groups), default=0)

    @staticmethod
    def _reject(event: RequestArrived, outcome: Outcome, reason: str, retry_after_ns: int) -> RejectRequest:
        return RejectRequest(event.request, outcome, reason, max(retry_after_ns, 0))
