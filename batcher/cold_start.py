"""Cold starts: models that no partition holds are loaded when a request comes that can be in time all the same.

The time that a load takes is part of what a request is predicted to take (Clockwork, OSDI 2020). Models of later stages
are loaded so that they are there when the stages before them end (Xanadu, Middleware 2020).
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from batcher.config import PartitionConfig, SchedulerSpec
from batcher.decisions import AnyDecision
from batcher.dispatch import Dispatcher
from batcher.estimate import QUANTILE
from batcher.eviction import choose_victims
from batcher.placement import ModelState
from batcher.plan import PipelineState, StageState
from batcher.pool import NEVER_NS
from batcher.prewarm import likely_stages
from batcher.residency import Residency
from batcher.residency_config import Eviction, Prewarm
from batcher.shelf import Shelf
from models.units import NS_PER_MS

AGAIN_NS = 10 * NS_PER_MS
"""Time between two attempts to find room for a model that requests under way wait for."""


class Offer(NamedTuple):
    """A partition that can load a model, which is there at `ready_ns`, once those in `leaving` have gone."""

    ready_ns: int
    shelf: Shelf
    leaving: tuple[str, ...]


class Refusal(NamedTuple):
    """Why no partition can load a model now, and whether that may be otherwise soon.

    `ready_ns` is when it is predicted to be there if it is waited for that others may go; None where they never may.
    """

    reason: str
    passing: bool
    ready_ns: int | None = None


class Claim(NamedTuple):
    """What a load is for: requests under way, or one of `pipeline` that is about to be.

    A `pressing` one is for what waits for that very model. What others are on their way to may go for it: they may
    themselves be waiting for a model that is to come. It is of use only where the model could run before `before_ns`.
    """

    pipeline: PipelineState | None = None
    pressing: bool = False
    before_ns: int = NEVER_NS


UNDER_WAY = Claim()


class Forecast(NamedTuple):
    """What a request of `pipeline` that needs cold starts is predicted to take.

    `wanted` are the models that are to be loaded, and when each is needed. With a `refusal` there is no way.
    """

    pipeline: PipelineState
    done_ns: int
    model: str
    wanted: list[tuple[int, ModelState]]
    refusal: Refusal | None = None


class ColdStarts:
    """Finds out what cold starts take, and orders loads; all orders are carried out by `attend`, at `wake_ns`.

    A model is loaded by one partition at a time. `loads`, `evictions`, `prewarms` and `replicas` count orders: of
    models in all, of those that went for others, for later stages, and of models that some partition holds already.
    """

    def __init__(self, spec: SchedulerSpec, dispatcher: Dispatcher, residency: Residency) -> None:
        self._config = spec.residency
        self._dispatcher = dispatcher
        self._fleet = dispatcher.fleet
        self._residency = residency
        self._hand_off_ns = spec.limits.hand_off_ns
        bounded = (config for config in spec.partitions if config.memory_bytes)
        self.shelves: dict[str, Shelf] = {}
        for config in bounded:
            self.shelves[config.name] = Shelf(config, self._fleet, residency, self.shelves)
        self._later: list[tuple[int, str]] = []
        self._refused: dict[ModelState, Refusal] = {}
        self.wake_ns: int | None = None
        self.loads = self.evictions = self.prewarms = self.replicas = 0

    def allow(self, partitions: Iterable[PartitionConfig]) -> None:
        """Take in which models partitions may hold, and of what kind they are."""
        for config in partitions:
            if (shelf := self.shelves.get(config.name)) is not None:
                shelf.allow(config)

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
                found = self._soonest(model, now_ns, Claim(pipeline), ahead_ns)
                refused = isinstance(found, Refusal)
                if isinstance(found, Refusal):
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
            self._want(model, need_ns, now_ns, Claim(forecast.pipeline))

    def relieve(self, pipeline: PipelineState, now_ns: int) -> None:
        """A request is refused since its models are busy: have one more partition load that which is the busiest.

        Only if one could begin sooner there, load and work that is promised there included.
        """
        start_ns, model = max(
            (
                (min(pool.start_after_backlog_ns(now_ns) for pool in model.pools), model)
                for _, model, _, _ in pipeline.steps
            ),
            key=lambda step: step[0],
            default=(0, None),
        )
        if model is None or self._coming_ns(model, now_ns) is not None:
            return
        offer = self._offer(model, now_ns, Claim(before_ns=start_ns))
        if isinstance(offer, Offer):
            self.replicas += 1
            self._order(model, offer, now_ns)

    # -- what happens

    def loaded(self, name: str, key: str, now_ns: int) -> None:
        """A partition holds a model more."""
        if (shelf := self.shelves.get(name)) is not None:
            shelf.loaded(self._fleet.models[key], now_ns)

    def failed(self, name: str, key: str, now_ns: int) -> None:
        """A model could not be loaded; what waits for it may have it loaded elsewhere."""
        if (shelf := self.shelves.get(name)) is not None:
            shelf.dropped(key, now_ns)
        self.wake_ns = now_ns

    def lost(self, name: str, now_ns: int) -> None:
        """A partition is gone, with what it was to load."""
        if (shelf := self.shelves.get(name)) is not None:
            shelf.lost()
        self.wake_ns = now_ns

    def due(self, now_ns: int) -> bool:
        """Whether it is time to `attend`."""
        return self.wake_ns is not None and self.wake_ns <= now_ns

    def attend(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Order what is due: for later stages, and for what waits although nothing was ordered for it."""
        while self._later and self._later[0][0] <= now_ns:
            model = self._fleet.models.get(heappop(self._later)[1])
            if model is not None and not model.served and self._require(model, now_ns) is None:
                self.prewarms += 1
        self._refused.clear()
        for model in list(self._fleet.stranded):
            self._rescue(model, now_ns)
        self._residency.issue(decisions)
        again_ns = [now_ns + AGAIN_NS] if self._refused else []
        self.wake_ns = min([*again_ns, *(at_ns for at_ns, _ in self._later[:1])], default=None)

    def refusal(self, model: ModelState, now_ns: int) -> Refusal | None:
        """Why what waits for a model is to be given up, now or when it is late; None if the model is to come."""
        if model not in self._refused and self._coming_ns(model, now_ns) is None:
            self.wake_ns = now_ns + 1  # it is waited for since `attend`
        return self._refused.get(model)

    def _rescue(self, model: ModelState, now_ns: int) -> None:
        """See to a model that requests under way wait for, and to the stages that follow."""
        if model.served or not any(model.queues.values()) or self._coming_ns(model, now_ns) is not None:
            return
        refusal = self._require(model, now_ns) and self._require(model, now_ns, Claim(pressing=True))
        if refusal is not None:
            returning = any(not host.is_gone(now_ns) for host in model.partitions)
            self._refused[model] = refusal._replace(passing=refusal.passing or returning)
            return
        for queue in model.queues.values():
            if queue.live:
                entry = queue.head()
                pipeline = entry.request.pipeline
                self._prewarm_after(pipeline, pipeline.stages[entry.stage], now_ns)

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

    def _want(self, model: ModelState, need_ns: int, now_ns: int, claim: Claim = UNDER_WAY) -> None:
        """Have a model loaded by the time that it is needed."""
        if model.served or self._coming_ns(model, now_ns) is not None:
            return
        load_ns = self._load_ns(model)
        if self._config.prewarm is Prewarm.JIT and need_ns - load_ns > now_ns:
            heappush(self._later, (need_ns - load_ns, model.config.key))
            if self.wake_ns is None or self._later[0][0] < self.wake_ns:
                self.wake_ns = self._later[0][0]
        elif self._require(model, now_ns, claim) is None:
            self.prewarms += need_ns > now_ns

    def _require(self, model: ModelState, now_ns: int, claim: Claim = UNDER_WAY) -> Refusal | None:
        """Have a model loaded as soon as can be."""
        if model.served or self._coming_ns(model, now_ns) is not None:
            return None
        offer = self._offer(model, now_ns, claim)
        if isinstance(offer, Refusal):
            return offer
        self._order(model, offer, now_ns)
        return None

    def _order(self, model: ModelState, offer: Offer, now_ns: int) -> None:
        key, shelf = model.config.key, offer.shelf
        self._residency.exchange(shelf.partition.name, key, offer.leaving)
        shelf.ordered(key, offer.ready_ns, now_ns)
        self.loads += 1
        self.evictions += len(offer.leaving)
        if offer.leaving:
            self._dispatcher.look_at(shelf.partition.name, now_ns)
        self.wake_ns = now_ns

    def _soonest(self, model: ModelState, now_ns: int, claim: Claim, ahead_ns: dict[str, int]) -> int | Refusal:
        """When a model can be there, after loads that partitions do first; that of this one is added to these."""
        if (coming_ns := self._coming_ns(model, now_ns)) is not None:
            return coming_ns
        offer = self._offer(model, now_ns, claim, ahead_ns)
        if isinstance(offer, Refusal):
            return offer
        name = offer.shelf.partition.name
        ahead_ns[name] = ahead_ns.get(name, 0) + offer.shelf.load_ns(model, self._config.load_ns)
        return offer.ready_ns

    def _coming_ns(self, model: ModelState, now_ns: int) -> int | None:
        """When a model is there that is being loaded; None for any other."""
        key = model.config.key
        times_ns = (shelf.ready_ns(key, now_ns) for shelf in self.shelves.values())
        return min((time_ns for time_ns in times_ns if time_ns is not None), default=None)

    def _load_ns(self, model: ModelState) -> int:
        return max((shelf.load_ns(model, self._config.load_ns) for shelf in self.shelves.values()), default=0)

    @staticmethod
    def _row_ns(model: ModelState) -> int:
        return min((model.row_ns(kind) for kind in model.estimates), default=0)

    def _offer(
        self, model: ModelState, now_ns: int, claim: Claim = UNDER_WAY, ahead_ns: Mapping[str, int] = {}
    ) -> Offer | Refusal:
        """The partition that can run a model the soonest, of equal ones that where nothing has to go.

        `ahead_ns` is what partitions load first beside what they were ordered to.
        """
        key, config = model.config.key, self._config
        able = [shelf for shelf in self.shelves.values() if shelf.may_hold(model)]
        if not able or key in self._residency.unwanted:
            return Refusal("no partition has room for it", passing=False)
        ranked: list[tuple[int, bool, int, int, Shelf]] = []
        coming: list[tuple[Shelf, int]] = []
        barred = busy = False
        for shelf in able:
            partition = shelf.partition
            held = key in partition.models or shelf.ready_ns(key, now_ns) is not None
            if held or not partition.ready or partition.pool is None:
                continue
            if self._residency.barred(partition.name, key, now_ns):
                barred = True
                continue
            coming_ns = ahead_ns.get(partition.name, 0) + shelf.load_ns(model, config.load_ns)
            coming.append((shelf, coming_ns))
            if shelf.loads >= config.loads:
                busy = True
            else:
                ready_ns = shelf.loads_end_ns(now_ns) + coming_ns
                start_ns = max(ready_ns, partition.pool.start_after_backlog_ns(now_ns))
                lacks = shelf.free_bytes < model.config.memory_on(partition.kind)
                if start_ns < claim.before_ns:
                    ranked.append((start_ns, lacks, partition.number, ready_ns, shelf))
        for _, lacks, _, ready_ns, shelf in sorted(ranked, key=lambda each: each[:3]):
            leaving = self._leaving(shelf, model, now_ns, claim) if lacks else ()
            if leaving is not None:
                return Offer(ready_ns, shelf, leaving)
        if busy:
            return Refusal("as many others are being loaded as may be", True, self._later_ns(model, coming, now_ns))
        if ranked:
            later_ns = self._later_ns(model, coming, now_ns)
            reason = "all that partitions hold is in use, or stays in their memory"
            return Refusal(reason, later_ns is not None, later_ns)
        if barred:
            return Refusal("it could not be loaded", passing=False)
        passing = any(not shelf.partition.ready and not shelf.partition.is_gone(now_ns) for shelf in able)
        return Refusal("no partition that has room for it is up", passing)

    def _later_ns(self, model: ModelState, coming: Iterable[tuple[Shelf, int]], now_ns: int) -> int | None:
        """When a model is there that waits until others may go, after all that waits already; None if they never may.

        `coming` are the partitions that may load it, and how long that is expected to take.
        """
        if self._config.eviction is Eviction.NONE:
            return None
        min_resident_ns, load_ns = self._config.min_resident_ns, self._config.load_ns
        times_ns: list[int] = []
        for shelf, coming_ns in coming:
            if shelf.may_get_room(model) and shelf.partition.pool is not None:
                backlog_ns = shelf.partition.pool.start_after_backlog_ns(now_ns)
                ahead = (each for each in self._refused if each is not model and any(each.queues.values()))
                ahead_ns = sum(shelf.load_ns(each, load_ns) + min_resident_ns for each in ahead)
                times_ns.append(max(shelf.settled_ns(min_resident_ns, now_ns), backlog_ns) + ahead_ns + coming_ns)
        return min(times_ns, default=None)

    def _leaving(self, shelf: Shelf, model: ModelState, now_ns: int, claim: Claim) -> tuple[str, ...] | None:
        """What is to leave a partition for a model; None if not enough may."""
        if self._config.eviction is Eviction.NONE:
            return None
        models = self._fleet.models
        lacking = model.config.memory_on(shelf.partition.kind) - shelf.free_bytes
        return choose_victims(
            shelf.residents(),
            lacking,
            model.config.priority,
            lambda key: self._may_go(models[key], shelf, now_ns, claim),
        )

    def _may_go(self, model: ModelState, shelf: Shelf, now_ns: int, claim: Claim) -> bool:
        """Whether nothing waits for a model, nor is on its way to it, and it has been there for a while."""
        if any(model.queues.values()) or shelf.young(model, self._config.min_resident_ns, now_ns):
            return False
        for pipeline in () if claim.pressing else model.pipelines:
            used = not pipeline.single and (pipeline.outstanding or pipeline is claim.pipeline)
            if used and pipeline.reach.get(model, 0.0) > 1 - QUANTILE:
                return False
        booked = self._dispatcher.booked
        if booked is None:
            return True
        return not any(slot.queue[0] == model.config.key for slot in booked.ledgers[shelf.partition.name].slots)
