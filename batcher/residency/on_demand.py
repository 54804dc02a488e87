"""Cold starts: models that no partition holds are loaded when a request comes that can be in time all the same.

The time that a load takes is part of what a request is predicted to take (Clockwork, OSDI 2020). Models of later stages
are loaded so that they are there when the stages before them end (Xanadu, Middleware 2020).
"""

from collections.abc import Iterable
from typing import NamedTuple

from sluice.batcher.dispatch.dispatcher import Dispatcher
from sluice.batcher.estimates.latency import QUANTILE
from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.residency_config import Prewarm
from sluice.batcher.residency.load_candidates import (
    FOR_ADMITTED,
    LoadCandidate,
    LoadCandidates,
    LoadPurpose,
    LoadRefusal,
    asked_for,
)
from sluice.batcher.residency.partition_memory import PartitionMemory
from sluice.batcher.residency.prewarm import likely_stages
from sluice.batcher.residency.reconciler import ResidencyReconciler
from sluice.batcher.state.model import UNAVAILABLE_NS, ModelState
from sluice.batcher.state.pipeline import PipelineState, StageState
from sluice.models.units import NS_PER_MS, NS_PER_S

AGAIN_NS = 10 * NS_PER_MS
"""Time between two attempts to find room for a model that requests under way wait for, or that were refused."""

MORE = 1.1
"""So many times the demand for a model of those have room looked for before that."""

PINNED_AGAIN_NS = NS_PER_S
"""The same for a pinned model that nothing waits for."""


class Forecast(NamedTuple):
    """What a request of `pipeline` that needs cold starts is predicted to take.

    `wanted` are the models that are to be loaded, and when each is needed. With a `refusal` there is no way.
    """

    pipeline: PipelineState
    done_ns: int
    model: str
    wanted: list[tuple[int, ModelState]]
    refusal: LoadRefusal | None = None


class OnDemandLoader:
    """Finds out what cold starts take, and orders loads; all orders are carried out by `run_due`, at `wake_ns`.

    A model is loaded by one partition at a time; of those who want it for later stages the first one has it loaded.
    `loads`, `evictions`, `prewarms`, `replicas`, `returns` and `restored` count orders: of models in all, of those that
    went for others, for later stages, of models that some partition holds already, for requests that were refused, and
    of pinned models.
    """

    def __init__(self, spec: SchedulerSpec, dispatcher: Dispatcher, residency: ResidencyReconciler) -> None:
        self._config = spec.residency
        self._dispatcher = dispatcher
        self._fleet = dispatcher.fleet
        self._residency = residency
        self._hand_off_ns = spec.limits.hand_off_ns
        bounded = (config for config in spec.partitions if config.memory_bytes)
        self.memories: dict[str, PartitionMemory] = {}
        for config in bounded:
            self.memories[config.name] = PartitionMemory(config, self._fleet, residency, self.memories)
        self._pinned = [model for model in self._fleet.models.values() if model.config.pinned]
        self._absent: list[ModelState] = []
        self._restore_ns, self._restores = 0, False
        self._later_ns: dict[str, int] = {}
        self._refused: dict[ModelState, LoadRefusal] = {}
        self._in_vain: dict[ModelState, tuple[int, float]] = {}
        self._candidates = LoadCandidates(spec, dispatcher, residency, self.memories, self._refused.keys())
        self.wake_ns: int | None = None
        self.loads = self.evictions = self.prewarms = self.replicas = self.returns = self.restored = 0

    def allow(self, partitions: Iterable[PartitionConfig]) -> None:
        """Take in which models partitions may hold, and of what kind they are."""
        for config in partitions:
            if (memory := self.memories.get(config.name)) is not None:
                memory.allow(config)
        self._pinned = [model for model in self._fleet.models.values() if model.config.pinned]

    def check_pinned(self, now_ns: int) -> None:
        """Pinned models may be missing, or get room: `run_due` to them when all of this instant is done."""
        self._absent = [model for model in self._pinned if not model.served]
        self._restore_ns = now_ns
        if self._absent and not self.due(now_ns + 1):
            self.wake_ns = now_ns + 1

    # -- requests

    def missing(self, pipeline: PipelineState) -> bool:
        """Whether no partition that is up holds some model of a pipeline."""
        return any(stage.model is not None and not stage.model.served for stage in pipeline.stages)

    def forecast(self, pipeline: PipelineState, now_ns: int) -> Forecast:
        """What a request takes that arrives now: every stage begins when those before it and its model are there."""
        config = self._config
        likely = {} if config.prewarm is Prewarm.OFF else likely_stages(pipeline, pipeline.roots, config.path)
        wanted: list[tuple[int, ModelState]] = []
        ahead_ns: dict[str, int] = {}
        first, done_ns = "", now_ns
        ends_ns, reach = [now_ns] * pipeline.stage_count, [1.0] * pipeline.stage_count
        for stage in pipeline.stages:
            index, model = stage.index, stage.model
            begin_ns = max((ends_ns[source] for source in stage.waits_for), default=now_ns)
            reach[index] = stage.probability * min((reach[source] for source in stage.waits_for), default=1.0)
            if model is not None and not model.served:
                found = self._soonest(model, now_ns, LoadPurpose(pipeline), ahead_ns)
                refused = isinstance(found, LoadRefusal)
                if isinstance(found, LoadRefusal):
                    certain = not stage.waits_for or (reach[index] == 1 and not found.passing)
                    if certain and found.ready_ns is None:
                        return Forecast(pipeline, 0, model.config.key, wanted, found)
                    found = found.ready_ns or now_ns + self._load_ns(model)
                prewarmed = likely.get(index, 0.0) >= config.min_probability and index in likely
                if not stage.waits_for or prewarmed:
                    wanted.append((begin_ns, model))
                if prewarmed and not refused:
                    begin_ns = max(begin_ns, found)
                else:  # when rows come, which those are that wait for the first stages
                    begin_ns += found - now_ns
                begin_ns += model.outstanding * self._row_ns(model)
                first = first or model.config.key
            ends_ns[index] = begin_ns + stage.service_ns(self._hand_off_ns)
            if reach[index] > 1 - QUANTILE:
                done_ns = max(done_ns, ends_ns[index])
        return Forecast(pipeline, done_ns, first, wanted)

    def begin(self, forecast: Forecast, now_ns: int) -> None:
        """Have the models loaded that an admitted request needs, each just in time."""
        for need_ns, model in forecast.wanted:
            self._want(model, need_ns, now_ns, LoadPurpose(forecast.pipeline))

    def add_replica(self, pipeline: PipelineState, now_ns: int) -> None:
        """A request is refused since its models are busy: have one more partition load that which is the busiest.

        Only if one could begin sooner there, load and work that is promised there included.
        """
        start_ns, model = max(
            (
                (min(group.start_after_backlog_ns(now_ns) for group in model.groups), model)
                for _, model, _, _ in pipeline.steps
            ),
            key=lambda step: step[0],
            default=(0, None),
        )
        if model is None or self._coming_ns(model, now_ns) is not None:
            return
        candidate = self._candidates.find(model, now_ns, LoadPurpose(before_ns=start_ns))
        if isinstance(candidate, LoadCandidate):
            self.replicas += 1
            self._order(model, candidate, now_ns)

    def note_rejection(self, pipeline: PipelineState, left_ns: int, now_ns: int) -> None:
        """A request that had `left_ns` is refused: its models are loaded all the same if none would ever wait for them.

        That is where the loads alone take longer. They are for those that come later, and so take the place only of
        what is asked for less.
        """
        absent = [model for model, reach in pipeline.expected_runs.items() if reach > 1 - QUANTILE and not model.served]
        wanted = [model for model in absent if self._coming_ns(model, now_ns) is None]
        if not wanted or left_ns > pipeline.critical_path_ns + sum(map(self._least_load_ns, absent)):
            return
        before = self.loads
        for model in wanted:
            asked = asked_for(model, now_ns)
            last_ns, last_asked = self._in_vain.get(model, (now_ns - AGAIN_NS, 0.0))
            if now_ns - last_ns < AGAIN_NS and asked < MORE * last_asked:
                continue  # thousands a second may be refused, and to look for room takes long where there is much
            if self._require(model, now_ns, LoadPurpose(pipeline, asked=asked)) is not None:
                self._in_vain[model] = now_ns, asked
        self.returns += self.loads - before

    # -- what happens

    def loaded(self, name: str, key: str, now_ns: int) -> None:
        """A partition holds a model more."""
        if (memory := self.memories.get(name)) is not None:
            memory.loaded(self._fleet.models[key], now_ns)

    def fit(self, names: Iterable[str], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Have models leave partitions that hold more than they have memory for."""
        for name in names:
            memory = self.memories.get(name)
            if (
                memory is None
                or not memory.partition.ready
                or not (leaving := self._candidates.surplus(memory, now_ns))
            ):
                continue
            self._residency.dismiss(name, leaving)
            self.evictions += len(leaving)
            self._dispatcher.reconsider(name, now_ns)
            self.wake_ns = now_ns
        self._residency.issue(decisions)

    def failed(self, name: str, key: str, now_ns: int) -> None:
        """A model could not be loaded; what waits for it may have it loaded elsewhere."""
        if (memory := self.memories.get(name)) is not None:
            memory.dropped(key, now_ns)
        self.wake_ns = now_ns

    def lost(self, name: str, now_ns: int) -> None:
        """A partition is gone, with what it was to load."""
        if (memory := self.memories.get(name)) is not None:
            memory.lost()
        self.wake_ns = now_ns

    def due(self, now_ns: int) -> bool:
        """Whether it is time to `run_due`."""
        return self.wake_ns is not None and self.wake_ns <= now_ns

    def run_due(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Order what is due: for later stages, and for what waits although nothing was ordered for it."""
        before = self.loads
        for _, key in sorted((at_ns, key) for key, at_ns in self._later_ns.items() if at_ns <= now_ns):
            del self._later_ns[key]
            if (model := self._fleet.models.get(key)) is not None:
                self._require(model, now_ns)
        self.prewarms += self.loads - before
        self._refused.clear()
        self._in_vain.clear()
        for model in list(self._fleet.stranded):
            self._rescue(model, now_ns)
        again_ns = [now_ns + AGAIN_NS] if self._refused else []
        if self._absent and now_ns >= self._restore_ns:
            self._restores = self._restore(now_ns)
        again_ns += [self._restore_ns] if self._absent and self._restores else []
        self._residency.issue(decisions)
        self.wake_ns = min([*again_ns, *self._later_ns.values()], default=None)

    def refusal(self, model: ModelState, now_ns: int) -> LoadRefusal | None:
        """Why what waits for a model is to be given up, now or when it is late; None if the model is to come."""
        if model not in self._refused and self._coming_ns(model, now_ns) is None:
            self.wake_ns = now_ns + 1  # it is waited for since `run_due`
        return self._refused.get(model)

    def _rescue(self, model: ModelState, now_ns: int) -> None:
        """See to a model that requests under way wait for, and to the stages that follow."""
        if model.served or not any(model.queues.values()) or self._coming_ns(model, now_ns) is not None:
            return
        refusal = self._require(model, now_ns) and self._require(model, now_ns, LoadPurpose(blocking=True))
        if refusal is not None:
            returning = any(not host.is_gone(now_ns) for host in model.partitions)
            self._refused[model] = refusal._replace(passing=refusal.passing or returning)
            return
        for queue in model.queues.values():
            if queue.live:
                entry = queue.head()
                pipeline = entry.request.pipeline
                self._prewarm_after(pipeline, pipeline.stages[entry.stage], now_ns)

    def _restore(self, now_ns: int) -> bool:
        """Have pinned models loaded that no partition holds; whether to wake up for them again, at `_restore_ns`.

        Those of a partition that may be back at once with what it held are left to that. What does not load is tried
        again when there is something else to do.
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

    def _prewarm_after(self, pipeline: PipelineState, stage: StageState, now_ns: int) -> None:
        """Rows have come to a stage that was not expected to run: what is likely to follow is another now."""
        if self._config.prewarm is Prewarm.OFF or pipeline.single:
            return
        ready_ns = None if stage.model is None else self._coming_ns(stage.model, now_ns)
        begin_ns = (ready_ns or now_ns) + stage.service_ns(self._hand_off_ns)
        for index, share in likely_stages(pipeline, [stage], self._config.path).items():
            model = pipeline.stages[index].model
            if index != stage.index and share >= self._config.min_probability and model is not None:
                self._want(model, begin_ns, now_ns)
                begin_ns += pipeline.stages[index].service_ns(self._hand_off_ns)

    # -- loads

    def _want(self, model: ModelState, need_ns: int, now_ns: int, purpose: LoadPurpose = FOR_ADMITTED) -> None:
        """Have a model loaded by the time that it is needed."""
        if model.served or self._coming_ns(model, now_ns) is not None:
            return
        load_ns = self._load_ns(model)
        if self._config.prewarm is Prewarm.JIT and need_ns - load_ns > now_ns:
            at_ns = min(need_ns - load_ns, self._later_ns.get(model.config.key, need_ns))
            self._later_ns[model.config.key] = at_ns
            if self.wake_ns is None or at_ns < self.wake_ns:
                self.wake_ns = at_ns
        elif self._require(model, now_ns, purpose) is None:
            self.prewarms += need_ns > now_ns

    def _require(self, model: ModelState, now_ns: int, purpose: LoadPurpose = FOR_ADMITTED) -> LoadRefusal | None:
        """Have a model loaded as soon as can be."""
        if model.served or self._coming_ns(model, now_ns) is not None:
            return None
        candidate = self._candidates.find(model, now_ns, purpose)
        if isinstance(candidate, LoadRefusal):
            return candidate
        self._order(model, candidate, now_ns)
        return None

    def _order(self, model: ModelState, candidate: LoadCandidate, now_ns: int) -> None:
        key, memory = model.config.key, candidate.memory
        self._residency.exchange(memory.partition.name, key, candidate.leaving)
        memory.ordered(key, candidate.ready_ns, now_ns)
        self.loads += 1
        self.evictions += len(candidate.leaving)
        if candidate.leaving:
            self._dispatcher.reconsider(memory.partition.name, now_ns)
        self.wake_ns = now_ns

    def _soonest(
        self, model: ModelState, now_ns: int, purpose: LoadPurpose, ahead_ns: dict[str, int]
    ) -> int | LoadRefusal:
        """When a model can be there, after loads that partitions do first; that of this one is added to these."""
        if (coming_ns := self._coming_ns(model, now_ns)) is not None:
            return coming_ns
        candidate = self._candidates.find(model, now_ns, purpose, ahead_ns)
        if isinstance(candidate, LoadRefusal):
            return candidate
        name = candidate.memory.partition.name
        ahead_ns[name] = ahead_ns.get(name, 0) + candidate.memory.load_ns(model, self._config.load_ns)
        return candidate.ready_ns

    def _coming_ns(self, model: ModelState, now_ns: int) -> int | None:
        """When a model is there that is being loaded; None for any other."""
        key = model.config.key
        times_ns = (memory.ready_ns(key, now_ns) for memory in self.memories.values())
        return min((time_ns for time_ns in times_ns if time_ns is not None), default=None)

    def _load_ns(self, model: ModelState) -> int:
        return max((memory.load_ns(model, self._config.load_ns) for memory in self.memories.values()), default=0)

    def _least_load_ns(self, model: ModelState) -> int:
        able = (memory for memory in self.memories.values() if memory.may_hold(model))
        return min((memory.load_ns(model, self._config.load_ns) for memory in able), default=0)

    @staticmethod
    def _row_ns(model: ModelState) -> int:
        return min((model.row_ns(kind) for kind in model.estimates), default=0)
