"""Loading on demand: a missing model is loaded for a request that can still be in time.

The predicted time of a request includes the loads (Clockwork, OSDI 2020). Models of later stages are loaded so that
they are ready when the stages before them end (Xanadu, Middleware 2020).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.estimates.latency import QUANTILE
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.partition_group import start_after_backlog_ns
from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.residency_config import OnMiss, Prewarm
from sluice.batcher.residency.foresight import Foresight
from sluice.batcher.residency.load_candidates import (
    FOR_ADMITTED,
    LoadCandidate,
    LoadCandidates,
    LoadPurpose,
    LoadRefusal,
    asked_for,
)
from sluice.batcher.residency.partition_memory import PartitionMemory
from sluice.batcher.residency.prewarm import likely_stages, needed_times, stages_ahead
from sluice.batcher.residency.reconciler import ResidencyReconciler
from sluice.batcher.state import (
    UNAVAILABLE_NS,
    ComingModel,
    ModelState,
    PipelineState,
    Request,
    StageState,
    service_ns,
)
from sluice.models.units import NS_PER_MS, NS_PER_S

AGAIN_NS = 10 * NS_PER_MS
"""Time between two attempts to find room for a model, for waiting or refused requests."""

MORE = 1.1
"""Growth of demand that starts the next attempt before `AGAIN_NS`."""

PINNED_AGAIN_NS = NS_PER_S
"""Time between two attempts to find room for a pinned model without waiting requests."""


class Forecast(NamedTuple):
    """The prediction for a request of `pipeline` that needs models to be loaded.

    `wanted` are the first stages whose models are to be loaded and the later ones that are likely, and when each needs
    its model. With a `refusal` some model cannot be loaded. `coming` says where and when each missing model will be
    there; it is empty if that is not certain for all of them. One of them may have to be ordered first, as `candidate`
    says.
    """

    pipeline: PipelineState
    done_ns: int
    model: str
    wanted: list[tuple[int, StageState, ModelState]]
    coming: Mapping[ModelState, ComingModel]
    candidate: LoadCandidate | None = None
    refusal: LoadRefusal | None = None


_Load = ComingModel | LoadCandidate | LoadRefusal
"""A load in progress, one that can be ordered, or none now."""


class Prospect(NamedTuple):
    """The prospect of entries that wait for a model without a running partition.

    They fail with the reason `failure`, or wait if it is empty. With `late_only`, entries that can still be in time
    wait all the same. `again_ns` is when to ask again; None for no time.
    """

    failure: str = ""
    late_only: bool = False
    again_ns: int | None = None


class OnDemandLoader:
    """Predicts the duration of loads, and orders them; `run_due` carries out all orders, at `wake_ns`.

    A model is loaded by one partition at a time. `reconsider` is called with partitions that hold fewer models, and
    `is_kept` returns True if a partition needs a model for a planned batch or for sequences.

    `loads` counts ordered loads, `evictions` the models evicted for others. Of the loads, `prewarms` were for later
    stages, `replicas` for models that another partition holds, `returns` for rejected requests, and `restored` for
    missing pinned models. `foresight` follows requests to their later stages, and knows how prewarms end.
    """

    enabled = True

    def __init__(
        self,
        spec: SchedulerSpec,
        fleet: Fleet,
        residency: ResidencyReconciler,
        reconsider: Callable[[str, int], None],
        is_kept: Callable[[str, str], bool],
    ) -> None:
        self._config = spec.residency
        self._fleet = fleet
        self._reconsider = reconsider
        self._residency = residency
        self._hand_off_ns = spec.limits.hand_off_ns
        bounded = (config for config in spec.partitions if config.memory_bytes)
        self.memories: dict[str, PartitionMemory] = {}
        for config in bounded:
            self.memories[config.name] = PartitionMemory(config, self._fleet, residency, self.memories)
        self._pinned = [model for model in self._fleet.models.values() if model.config.pinned]
        self._absent: list[ModelState] = []
        self._restore_ns, self._restores = 0, False
        self._again_ns: dict[str, int] = {}
        self._refused: dict[ModelState, LoadRefusal] = {}
        self._in_vain: dict[ModelState, tuple[int, float]] = {}
        self.foresight = Foresight(self._release)
        self.followed: Mapping[int, object] = self.foresight.followed
        self._candidates = LoadCandidates(
            spec.residency, fleet, residency, self.memories, self._refused.keys(), is_kept, self.foresight
        )
        self.wake_ns: int | None = None
        self.loads = self.evictions = self.prewarms = self.replicas = self.returns = self.restored = 0

    def allow(self, partitions: Iterable[PartitionConfig]) -> None:
        """Set the models that partitions may hold, and the kinds of the partitions."""
        for config in partitions:
            if (memory := self.memories.get(config.name)) is not None:
                memory.allow(config)
        self._pinned = [model for model in self._fleet.models.values() if model.config.pinned]

    def check_pinned(self, now_ns: int) -> None:
        """Make `run_due` look for missing pinned models, once all events of this instant are handled."""
        self._absent = [model for model in self._pinned if not model.served]
        self._restore_ns = now_ns
        if self._absent and not self.due(now_ns + 1):
            self.wake_ns = now_ns + 1

    # -- requests

    def forecast(
        self, pipeline: PipelineState, now_ns: int, variants: Sequence[ModelState | None] = ()
    ) -> Forecast | None:
        """The prediction for a request now: a stage begins once its model is loaded and its sources have run.

        With `variants`, these models run the stages. None if running partitions hold all models.
        """
        models = variants or [stage.model for stage in pipeline.stages]
        if all(model is None or model.served for model in models):
            return None
        config = self._config
        likely = {} if config.prewarm is Prewarm.OFF else likely_stages(pipeline, pipeline.roots, config.path)
        wanted: list[tuple[int, StageState, ModelState]] = []
        loads: dict[ModelState, _Load] = {}
        ahead_ns: dict[str, int] = {}
        first, done_ns = "", now_ns
        ends_ns, probabilities = [now_ns] * pipeline.stage_count, [1.0] * pipeline.stage_count
        for stage in pipeline.stages:
            index, model = stage.index, models[stage.index]
            begin_ns = max((ends_ns[source] for source in stage.waits_for), default=now_ns)
            probabilities[index] = stage.run_probability * min(
                (probabilities[source] for source in stage.waits_for), default=1.0
            )
            prewarmed = bool(stage.waits_for) and index in likely and likely[index] >= config.min_probability
            if model is not None and (prewarmed or not stage.waits_for):
                wanted.append((begin_ns, stage, model))
            if model is not None and not model.served:
                found = loads[model] = loads.get(model) or self._soonest(model, now_ns, pipeline, ahead_ns)
                ready_ns, refused = found.ready_ns, isinstance(found, LoadRefusal)
                if isinstance(found, LoadRefusal) and ready_ns is None:
                    if not stage.waits_for or (probabilities[index] == 1 and not found.passing):
                        return Forecast(pipeline, 0, model.config.key, wanted, {}, refusal=found)
                    ready_ns = now_ns + self._load_ns(model)
                assert ready_ns is not None, "only a refusal may not tell when the model is ready"
                if prewarmed and not refused:
                    begin_ns = max(begin_ns, ready_ns)
                else:  # when rows arrive: rows for the first stages already wait
                    begin_ns += ready_ns - now_ns
                begin_ns += model.outstanding * self._row_ns(model)
                first = first or model.config.key
            ends_ns[index] = begin_ns + service_ns(model, self._hand_off_ns)
            if probabilities[index] > 1 - QUANTILE:
                done_ns = max(done_ns, ends_ns[index])
        if variants:
            return Forecast(pipeline, done_ns, first, wanted, {})
        return Forecast(pipeline, done_ns, first, wanted, *_certain(pipeline, loads))

    def begin(self, request: int, forecast: Forecast, now_ns: int) -> None:
        """Load the models that an admitted request needs, each just in time, and follow it to its later stages."""
        later = [each for each in forecast.wanted if each[1].waits_for]
        if self._config.prewarm is not Prewarm.OFF and not forecast.pipeline.single:
            self.foresight.follow(request, frozenset(stage.index for _, stage, _ in later))
        for _, stage, model in forecast.wanted:
            if stage.waits_for or model.served or model.config.instances is not None:
                continue
            if forecast.candidate is None:
                self._require(model, now_ns, LoadPurpose(forecast.pipeline))
            elif self._coming(model, now_ns) is None:
                self._order(model, forecast.candidate, now_ns)
        self._prewarm(request, later, now_ns, LoadPurpose(forecast.pipeline))

    def reached(self, request: Request, stage: StageState, now_ns: int) -> None:
        """Record that rows of a request have come to a stage that waited for others."""
        if request.identity in self.followed:
            self.foresight.reached(request, stage, now_ns)
            self._look_again(now_ns)

    def skipped(self, request: Request, stage: StageState, now_ns: int) -> None:
        """Record that no rows of a request come to a stage."""
        if request.identity in self.followed:
            self.foresight.skipped(request, stage, now_ns)
            self._look_again(now_ns)

    def left(self, request: Request) -> None:
        """Record that a request has its outcome."""
        if self.foresight.left(request.identity):
            self._look_again(0)

    def _look_again(self, now_ns: int) -> None:
        """Have `run_due` look at the requests that have changed, once all events of this instant are handled."""
        if self.foresight.is_changed and (self.wake_ns is None or self.wake_ns > now_ns):
            self.wake_ns = now_ns

    def add_replica(self, pipeline: PipelineState, now_ns: int) -> None:
        """Load the busiest model of a pipeline on one more partition, after a rejection because models are busy.

        Only if the model could begin sooner there, after its load and the planned work.
        """
        start_ns, model = max(
            (
                (min(start_after_backlog_ns(group, now_ns) for group in model.groups), model)
                for _, model, _ in pipeline.steps
            ),
            key=lambda step: step[0],
            default=(0, None),
        )
        if model is None or model.config.instances is not None or self._coming(model, now_ns) is not None:
            return
        candidate = self._candidates.find(model, now_ns, LoadPurpose(before_ns=start_ns))
        if isinstance(candidate, LoadCandidate):
            self.replicas += 1
            self._order(model, candidate, now_ns)

    def note_rejection(
        self, pipeline: PipelineState, left_ns: int, now_ns: int, variants: Sequence[ModelState | None] = ()
    ) -> None:
        """Count a rejected request as demand; load its models if the loads alone take longer than its `left_ns`.

        Such loads serve later requests, so they evict only models with less demand. With `variants`, these models were
        to run the stages.
        """
        runs = dict(pipeline.expected_runs)
        if variants:
            runs = {model: pipeline.reach[index] for index, model in enumerate(variants) if model is not None}
        absent = [model for model, share in runs.items() if share > 1 - QUANTILE and not model.served]
        wanted = [model for model in absent if self._coming(model, now_ns) is None]
        if not wanted or left_ns > pipeline.critical_path_ns + sum(map(self._least_load_ns, absent)):
            return
        before = self.loads
        for model in wanted:
            asked = asked_for(model, now_ns)
            last_ns, last_asked = self._in_vain.get(model, (now_ns - AGAIN_NS, 0.0))
            if now_ns - last_ns < AGAIN_NS and asked < MORE * last_asked:
                continue  # thousands of requests a second may be rejected, and a search over many models is slow
            if self._require(model, now_ns, LoadPurpose(pipeline, asked=asked)) is not None:
                self._in_vain[model] = now_ns, asked
        self.returns += self.loads - before

    # -- partitions that an instance policy chose

    def may_load(self, name: str, model: ModelState) -> bool:
        """True if a partition may ever load a model."""
        memory = self.memories.get(name)
        return memory is not None and memory.may_hold(model)

    def room_on(self, name: str, model: ModelState, stays: Collection[str], now_ns: int) -> tuple[str, ...] | None:
        """The models to evict so that a partition can load a model now, none of them in `stays`; None if it cannot."""
        memory = self.memories.get(name)
        return None if memory is None else self._candidates.room_on(memory, model, stays, now_ns)

    def load_on(self, name: str, model: ModelState, leaving: tuple[str, ...], now_ns: int) -> None:
        """Load a model on a partition in place of others; the orders are given by `ResidencyReconciler.issue`."""
        memory = self.memories[name]
        ready_ns = memory.loads_end_ns(now_ns) + memory.load_ns(model, self._config.load_ns)
        wake_ns = self.wake_ns
        self._order(model, LoadCandidate(ready_ns, memory, leaving), now_ns)
        self.wake_ns = wake_ns

    def load_time_ns(self, name: str, model: ModelState) -> int:
        """The expected time of a load."""
        return self.memories[name].load_ns(model, self._config.load_ns)

    # -- what happens

    def sampled(self, used: Mapping[str, int]) -> None:
        """Record the bytes in use by partition."""
        if self._candidates.packing is not None:
            self._candidates.packing.sampled(used)

    def loaded(self, name: str, key: str, now_ns: int) -> None:
        """Record that a partition holds one more model."""
        if (memory := self.memories.get(name)) is not None:
            model = self._fleet.models[key]
            memory.loaded(model, now_ns)
            if self.foresight.loaded(model, now_ns) and not self._fleet.queues.has_work(model):
                memory.release(model)

    def _release(self, model: ModelState) -> None:
        """Have a model that was loaded for nothing go first."""
        for host in model.partitions:
            if (memory := self.memories.get(host.name)) is not None:
                memory.release(model)

    def fit(self, names: Iterable[str], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Evict models from partitions that exceed their memory."""
        for name in names:
            memory = self.memories.get(name)
            if (
                memory is None
                or not memory.partition.ready
                or not (leaving := self._candidates.surplus(memory, now_ns))
            ):
                continue
            self._residency.unload(name, leaving)
            self._evicted(leaving, now_ns)
            self._reconsider(name, now_ns)
            self.wake_ns = now_ns
        self._residency.issue(decisions)

    def failed(self, name: str, key: str, now_ns: int) -> None:
        """Record that a load failed; the model may be loaded elsewhere for its waiting entries."""
        if (memory := self.memories.get(name)) is not None:
            memory.dropped(key, now_ns)
        self._strand((key,))
        self._dropped((key,), now_ns)
        self.wake_ns = now_ns

    def lost(self, name: str, now_ns: int) -> None:
        """Record that a partition is lost, and its ordered loads with it."""
        if (memory := self.memories.get(name)) is not None:
            loading = memory.lost()
            self._strand(loading)
            self._dropped(loading, now_ns)
        self.wake_ns = now_ns

    def _strand(self, keys: Iterable[str]) -> None:
        """Look for other partitions for models that entries wait for, and that are not being loaded any more."""
        for key in keys:
            model = self._fleet.models.get(key)
            if model is not None and not model.served and self._fleet.queues.has_work(model):
                self._fleet.strand(model)

    def due(self, now_ns: int) -> bool:
        """True if it is time for `run_due`."""
        return self.wake_ns is not None and self.wake_ns <= now_ns

    def run_due(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Order the loads that are due: for later stages, and for waiting entries whose model was not ordered."""
        for key in [key for key, at_ns in self._again_ns.items() if at_ns <= now_ns]:
            del self._again_ns[key]
        self._refused.clear()
        self._in_vain.clear()
        for model in list(self._fleet.stranded):
            self._rescue(model, now_ns)
        for request, is_missed in self.foresight.take_changed(now_ns):
            self._foresee(request, is_missed, now_ns)
        for model in self.foresight.due(now_ns):
            self._prepare(model, now_ns)
        again_ns = [now_ns + AGAIN_NS] if self._refused else []
        if self._absent and now_ns >= self._restore_ns:
            self._restores = self._restore(now_ns)
        again_ns += [self._restore_ns] if self._absent and self._restores else []
        self._residency.issue(decisions)
        next_ns = self.foresight.next_ns
        again_ns += [] if next_ns is None else [next_ns]
        self.wake_ns = min([*again_ns, *self._again_ns.values()], default=None)

    def prospect(self, model: ModelState, now_ns: int) -> Prospect:
        """Entries fail if the model cannot be loaded; if that may change, only late entries fail."""
        if model not in self._refused and model.config.instances is None and self._coming(model, now_ns) is None:
            self.wake_ns = now_ns + 1  # entries for it came after `run_due`
        if (refusal := self._refused.get(model)) is None:
            return Prospect()
        return Prospect(f"model {model.config.key} is not loaded: {refusal.reason}", refusal.passing)

    def _rescue(self, model: ModelState, now_ns: int) -> None:
        """Load a model that entries wait for, and prewarm the stages that follow."""
        if model.served or not self._fleet.queues.has_work(model):
            return
        if self._coming(model, now_ns) is not None:
            self._fleet.rescue(model)
            return
        if model.config.instances is not None:
            self._rescue_chosen(model, now_ns)
            return
        refusal = self._require(model, now_ns) and self._require(model, now_ns, LoadPurpose(blocking=True))
        if refusal is not None:
            returning = any(not host.is_gone(now_ns) for host in model.partitions)
            self._refused[model] = refusal._replace(passing=refusal.passing or returning)
            return
        self._fleet.rescue(model)
        for queue in self._fleet.queues.of(model):
            if queue.live:
                request = queue.head().request
                if self._config.prewarm is not Prewarm.OFF and not request.pipeline.single:
                    self._foresee(request, False, now_ns)

    def _rescue_chosen(self, model: ModelState, now_ns: int) -> None:
        """Refuse a model that no partition can load, or look at it again once others may be evicted.

        Its policy chooses the partition, so nothing is loaded here.
        """
        found = self._candidates.find(model, now_ns, LoadPurpose(blocking=True))
        if not isinstance(found, LoadRefusal):
            return
        if found.ready_ns is None:
            self._refused[model] = found
        else:
            again_ns = max(found.ready_ns - self._load_ns(model), now_ns + AGAIN_NS)
            self._again_ns[model.config.key] = again_ns

    def _restore(self, now_ns: int) -> bool:
        """Load missing pinned models; True if they need a wake-up, at `_restore_ns`.

        Nothing is loaded while a lost partition may come back with its models. A model that does not load is retried at
        the next wake-up for another reason.
        """
        self._absent = [model for model in self._absent if not model.served]
        self._restore_ns = now_ns + PINNED_AGAIN_NS
        away = [each for each in self._fleet.partitions.values() if not each.ready and not each.is_gone(now_ns)]
        if away:
            gone_ns = [each.lost_ns + UNAVAILABLE_NS for each in away if each.lost_ns is not None]
            self._restore_ns = min(gone_ns, default=self._restore_ns)
            return bool(gone_ns)
        before = self.loads
        refusals = [self._require(model, now_ns) for model in self._absent]
        self.restored += self.loads - before
        return any(refusal is not None and refusal.ready_ns is not None for refusal in refusals)

    # -- prewarming

    def _foresee(self, request: Request, is_missed: bool, now_ns: int) -> None:
        """Find the most likely path of a request from where it is, and prewarm along it.

        After a miss nothing more is prewarmed for the request if that is configured.
        """
        config, foresight, identity = self._config, self.foresight, request.identity
        if foresight.is_stopped(identity):
            return
        if config.on_miss is OnMiss.STOP and is_missed:
            foresight.stop(identity, now_ns)
            return
        ahead = stages_ahead(request, config.path, config.min_probability)
        foresight.follow(identity, ahead)
        foresight.keep_only(identity, ahead, now_ns)

        def ready_ns(model: ModelState) -> int:
            coming = self._coming(model, now_ns)
            return now_ns + self._load_ns(model) if coming is None else coming.ready_ns

        self._prewarm(identity, needed_times(request, ahead, now_ns, ready_ns, self._hand_off_ns), now_ns)

    def _prewarm(
        self,
        request: int,
        needed: Iterable[tuple[int, StageState, ModelState]],
        now_ns: int,
        purpose: LoadPurpose = FOR_ADMITTED,
    ) -> None:
        """Load models by the times that a followed request needs them, unless a policy chooses where they are."""
        for need_ns, stage, model in needed:
            if model.config.instances is not None:
                continue
            at_ns = need_ns - self._load_ns(model) if self._config.prewarm is Prewarm.JIT else now_ns
            self.foresight.expect(request, stage.index, model, at_ns)
            if model.served or self._coming(model, now_ns) is not None:
                continue
            if at_ns <= now_ns:
                self._prepare(model, now_ns, purpose)
                continue
            self.foresight.plan(model, at_ns)
            if self.wake_ns is None or at_ns < self.wake_ns:
                self.wake_ns = at_ns

    def _prepare(self, model: ModelState, now_ns: int, purpose: LoadPurpose = FOR_ADMITTED) -> None:
        """Load a model ahead of the rows that will need it, if there is room."""
        before = self.loads
        self._require(model, now_ns, purpose)
        if self.loads > before:
            self.prewarms += 1
            self.foresight.ordered(model, ahead=True)

    # -- loads

    def _require(self, model: ModelState, now_ns: int, purpose: LoadPurpose = FOR_ADMITTED) -> LoadRefusal | None:
        """Load a model as soon as possible."""
        if model.served or self._coming(model, now_ns) is not None:
            return None
        candidate = self._candidates.find(model, now_ns, purpose)
        if isinstance(candidate, LoadRefusal):
            return candidate
        self._order(model, candidate, now_ns)
        return None

    def _order(self, model: ModelState, candidate: LoadCandidate, now_ns: int) -> None:
        key, memory = model.config.key, candidate.memory
        self._residency.replace(memory.partition.name, key, candidate.leaving)
        memory.ordered(key, candidate.ready_ns, now_ns)
        self.loads += 1
        self.foresight.ordered(model, ahead=False)
        self._evicted(candidate.leaving, now_ns)
        if candidate.leaving:
            self._reconsider(memory.partition.name, now_ns)
        self.wake_ns = now_ns

    def _evicted(self, leaving: Collection[str], now_ns: int) -> None:
        self.evictions += len(leaving)
        self._dropped(leaving, now_ns)

    def _dropped(self, keys: Iterable[str], now_ns: int) -> None:
        """Record that models have gone, or will not be loaded."""
        for key in keys:
            model = self._fleet.models.get(key)
            if model is not None and not model.served:
                self.foresight.dropped(model, now_ns)

    def _soonest(self, model: ModelState, now_ns: int, pipeline: PipelineState, ahead_ns: dict[str, int]) -> _Load:
        """Where and when a model can be loaded, after the loads in `ahead_ns`; adds its own load to them."""
        if (coming := self._coming(model, now_ns)) is not None:
            return coming
        candidate = self._candidates.find(model, now_ns, LoadPurpose(pipeline), ahead_ns)
        if isinstance(candidate, LoadCandidate):
            name = candidate.memory.partition.name
            ahead_ns[name] = ahead_ns.get(name, 0) + candidate.memory.load_ns(model, self._config.load_ns)
        return candidate

    def _coming(self, model: ModelState, now_ns: int) -> ComingModel | None:
        """Where a load in progress ends, and when; None for a model that is not being loaded."""
        key = model.config.key
        found: ComingModel | None = None
        for name in self._residency.loaders(key):
            if (memory := self.memories.get(name)) is not None:
                ready_ns = memory.ready_ns(key, now_ns)
                if found is None or ready_ns < found.ready_ns:
                    found = ComingModel(memory.partition, ready_ns)
        return found

    def _load_ns(self, model: ModelState) -> int:
        return max((memory.load_ns(model, self._config.load_ns) for memory in self.memories.values()), default=0)

    def _least_load_ns(self, model: ModelState) -> int:
        able = (memory for memory in self.memories.values() if memory.may_hold(model))
        return min((memory.load_ns(model, self._config.load_ns) for memory in able), default=0)

    @staticmethod
    def _row_ns(model: ModelState) -> int:
        return min((model.row_ns(kind) for kind in model.estimates), default=0)


def _certain(
    pipeline: PipelineState, loads: Mapping[ModelState, _Load]
) -> tuple[Mapping[ModelState, ComingModel], LoadCandidate | None]:
    """Where and when missing models will be there, and the one load to be ordered for that.

    It is certain where all are being loaded, or all except one of a first stage: the room for a second load, or for a
    later one, is not known before the first one is ordered.
    """
    coming: dict[ModelState, ComingModel] = {}
    candidate: LoadCandidate | None = None
    for model, load in loads.items():
        if (
            isinstance(load, LoadCandidate)
            and candidate is None
            and any(model is root.model for root in pipeline.roots)
        ):
            candidate = load
            coming[model] = ComingModel(load.memory.partition, load.ready_ns)
        elif isinstance(load, ComingModel):
            coming[model] = load
        else:
            return {}, None
        if coming[model].partition.kind not in model.estimates:
            return {}, None
    return coming, candidate


class NoOnDemandLoading:
    """Replaces `OnDemandLoader` where a plan places models: it orders nothing."""

    enabled = False

    def __init__(self) -> None:
        self.memories: Mapping[str, PartitionMemory] = {}
        self.followed: Mapping[int, object] = {}
        self.wake_ns: int | None = None

    def allow(self, partitions: Iterable[PartitionConfig]) -> None:
        """Nothing is loaded anywhere."""

    def check_pinned(self, now_ns: int) -> None:
        """The plan places pinned models."""

    def forecast(self, pipeline: PipelineState, now_ns: int, variants: Sequence[ModelState | None] = ()) -> None:
        """No request has to wait for a load of its own."""

    def begin(self, request: int, forecast: Forecast, now_ns: int) -> None:
        """The plan decides which models are loaded."""

    def reached(self, request: Request, stage: StageState, now_ns: int) -> None:
        """No request is followed."""

    def skipped(self, request: Request, stage: StageState, now_ns: int) -> None:
        """As `reached`."""

    def left(self, request: Request) -> None:
        """As `reached`."""

    def note_rejection(
        self, pipeline: PipelineState, left_ns: int, now_ns: int, variants: Sequence[ModelState | None] = ()
    ) -> None:
        """Nothing is loaded for later requests."""

    def due(self, now_ns: int) -> bool:
        """Nothing is ever due."""
        return False

    def run_due(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Nothing is ever due."""

    def prospect(self, model: ModelState, now_ns: int) -> Prospect:
        """Entries fail if the partitions of the model have been lost for too long."""
        gone_ns = max(
            (now_ns if host.lost_ns is None else host.lost_ns for host in model.partitions),
            default=now_ns - UNAVAILABLE_NS,
        )
        if now_ns - gone_ns < UNAVAILABLE_NS:
            return Prospect(again_ns=gone_ns + UNAVAILABLE_NS)
        return Prospect(f"no partition holds model {model.config.key} any more")

    def add_replica(self, pipeline: PipelineState, now_ns: int) -> None:
        """The plan decides how many partitions hold a model."""

    def may_load(self, name: str, model: ModelState) -> bool:
        """A partition runs what the plan has it hold."""
        return False

    def room_on(self, name: str, model: ModelState, stays: Collection[str], now_ns: int) -> tuple[str, ...] | None:
        """As `may_load`."""
        return None

    def load_on(self, name: str, model: ModelState, leaving: tuple[str, ...], now_ns: int) -> None:
        """Nothing is loaded, since there is never room."""

    def load_time_ns(self, name: str, model: ModelState) -> int:
        """As `load_on`."""
        return 0

    def sampled(self, used: Mapping[str, int]) -> None:
        """The plan goes by what models are known to take."""

    def loaded(self, name: str, key: str, now_ns: int) -> None:
        """No memory is counted."""

    def fit(self, names: Iterable[str], now_ns: int, decisions: list[AnyDecision]) -> None:
        """The plan keeps partitions within their memory."""

    def failed(self, name: str, key: str, now_ns: int) -> None:
        """The reconciler tries again."""

    def lost(self, name: str, now_ns: int) -> None:
        """No memory is counted."""
