"""Offers: which partition can load a model, when the model is there, and what has to go for it."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sluice.batcher.dispatch.dispatcher import Dispatcher
from sluice.batcher.estimates.latency import QUANTILE
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.residency_config import Eviction
from sluice.batcher.residency.partition_memory import PartitionMemory
from sluice.batcher.residency.reconciler import ResidencyReconciler
from sluice.batcher.residency.victims import choose_victims
from sluice.batcher.state.model import ModelState
from sluice.batcher.state.pipeline import PipelineState
from sluice.batcher.state.pool import NEVER_NS

_MIB = 1 << 20


class LoadCandidate(NamedTuple):
    """A partition that can load a model, which is there at `ready_ns`, once those in `leaving` have gone."""

    ready_ns: int
    shelf: PartitionMemory
    leaving: tuple[str, ...]


class LoadRefusal(NamedTuple):
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
    With `asked` nobody waits for it: that many rows came lately, which were refused as they could not wait so long.
    """

    pipeline: PipelineState | None = None
    pressing: bool = False
    before_ns: int = NEVER_NS
    asked: float | None = None


UNDER_WAY = Claim()


def asked_for(model: ModelState, now_ns: int) -> float:
    """The rows that came lately for a model, served or not, by those that came for its pipelines."""
    return sum(each.demand.rows(now_ns) * each.reach.get(model, 0.0) for each in model.pipelines)


class LoadCandidates:
    """Looks for room; `shelves` are the partitions by name, `waiting` the models that found none."""

    def __init__(
        self,
        spec: SchedulerSpec,
        dispatcher: Dispatcher,
        residency: ResidencyReconciler,
        shelves: Mapping[str, PartitionMemory],
        waiting: Collection[ModelState],
    ) -> None:
        self._config = spec.residency
        self._dispatcher = dispatcher
        self._models = dispatcher.fleet.models
        self._residency = residency
        self._shelves = shelves
        self._waiting = waiting

    def find(
        self, model: ModelState, now_ns: int, claim: Claim = UNDER_WAY, ahead_ns: Mapping[str, int] = {}
    ) -> LoadCandidate | LoadRefusal:
        """The partition that can run a model the soonest, of equal ones that where nothing has to go.

        `ahead_ns` is what partitions load first beside what they were ordered to.
        """
        key, config = model.config.key, self._config
        able = [shelf for shelf in self._shelves.values() if shelf.may_hold(model)]
        if not able or key in self._residency.unwanted:
            found = f"the {model.config.most_bytes / _MIB:.3g} MiB that it was found to take"
            return LoadRefusal(f"no partition has room for {found if model.config.weighed else 'it'}", passing=False)
        ranked: list[tuple[int, bool, int, int, PartitionMemory]] = []
        coming: list[tuple[PartitionMemory, int]] = []
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
                return LoadCandidate(ready_ns, shelf, leaving)
        if busy:
            return LoadRefusal("as many others are being loaded as may be", True, self._later_ns(model, coming, now_ns))
        if ranked:
            later_ns = self._later_ns(model, coming, now_ns)
            reason = "all that partitions hold is in use, or stays in their memory"
            return LoadRefusal(reason, later_ns is not None, later_ns)
        if barred:
            return LoadRefusal("it could not be loaded", passing=False)
        passing = any(not shelf.partition.ready and not shelf.partition.is_gone(now_ns) for shelf in able)
        return LoadRefusal("no partition that has room for it is up", passing)

    def surplus(self, shelf: PartitionMemory, now_ns: int) -> tuple[str, ...]:
        """What is to leave a partition that holds more than it has memory for, as a model takes more than was believed.

        That is what nobody needs, else what others are only on their way to, else what is waited for as well; all that
        may go if even that is too little.
        """
        lacking, residents = -shelf.free_bytes, shelf.residents()
        if lacking <= 0 or not residents:
            return ()
        most = max(each.priority for each in residents)
        for claim in (UNDER_WAY, Claim(pressing=True), None):

            def may_go(key: str, claim: Claim | None = claim) -> bool:
                return claim is None or self._may_go(self._models[key], shelf, now_ns, claim)

            if (leaving := choose_victims(residents, lacking, most, may_go)) is not None:
                return leaving
        return tuple(each.key for each in residents)

    def _later_ns(self, model: ModelState, coming: Iterable[tuple[PartitionMemory, int]], now_ns: int) -> int | None:
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
                ahead = (each for each in self._waiting if each is not model and any(each.queues.values()))
                ahead_ns = sum(shelf.load_ns(each, load_ns) + min_resident_ns for each in ahead)
                times_ns.append(max(shelf.settled_ns(min_resident_ns, now_ns), backlog_ns) + ahead_ns + coming_ns)
        return min(times_ns, default=None)

    def _leaving(self, shelf: PartitionMemory, model: ModelState, now_ns: int, claim: Claim) -> tuple[str, ...] | None:
        """What is to leave a partition for a model; None if not enough may."""
        if self._config.eviction is Eviction.NONE:
            return None
        models = self._models
        load_ns = shelf.load_ns(model, self._config.load_ns)

        def worth(key: str) -> float:
            """The rows lately that call for another model to stay, with those lost to its going and coming back.

            As long as it has been here, so long the other one is expected to stay instead.
            """
            other = models[key]
            if other.config.priority < model.config.priority:
                return 0.0
            return asked_for(other, now_ns) * (1 + 2 * load_ns / max(shelf.held_ns(key, now_ns), 1))

        def may_go(key: str) -> bool:
            outweighed = claim.asked is None or worth(key) < claim.asked
            return outweighed and self._may_go(models[key], shelf, now_ns, claim)

        lacking = model.config.memory_on(shelf.partition.kind) - shelf.free_bytes
        leaving = choose_victims(shelf.residents(), lacking, model.config.priority, may_go)
        if leaving is not None and claim.asked is not None and sum(map(worth, leaving)) >= claim.asked:
            return None
        return leaving

    def _may_go(self, model: ModelState, shelf: PartitionMemory, now_ns: int, claim: Claim) -> bool:
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
