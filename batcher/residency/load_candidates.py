"""Candidates: which partition can load a model, when the model is there, and what has to go for it."""

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
    memory: PartitionMemory
    leaving: tuple[str, ...]


class LoadRefusal(NamedTuple):
    """Why no partition can load a model now, and whether that may be otherwise soon.

    `ready_ns` is when it is predicted to be there if it is waited for that others may go; None where they never may.
    """

    reason: str
    passing: bool
    ready_ns: int | None = None


class LoadPurpose(NamedTuple):
    """What a load is for: requests under way, or one of `pipeline` that is about to be.

    A `blocking` one is for what waits for that very model. What others are on their way to may go for it: they may
    themselves be waiting for a model that is to come. It is of use only where the model could run before `before_ns`.
    With `asked` nobody waits for it: that many rows came lately, which were refused as they could not wait so long.
    """

    pipeline: PipelineState | None = None
    blocking: bool = False
    before_ns: int = NEVER_NS
    asked: float | None = None


FOR_ADMITTED = LoadPurpose()


def asked_for(model: ModelState, now_ns: int) -> float:
    """The rows that came lately for a model, served or not, by those that came for its pipelines."""
    return sum(each.demand.rows(now_ns) * each.expected_runs.get(model, 0.0) for each in model.pipelines)


class LoadCandidates:
    """Looks for room; `memories` are the partitions by name, `waiting` the models that found none."""

    def __init__(
        self,
        spec: SchedulerSpec,
        dispatcher: Dispatcher,
        residency: ResidencyReconciler,
        memories: Mapping[str, PartitionMemory],
        waiting: Collection[ModelState],
    ) -> None:
        self._config = spec.residency
        self._dispatcher = dispatcher
        self._models = dispatcher.fleet.models
        self._residency = residency
        self._memories = memories
        self._waiting = waiting

    def find(
        self, model: ModelState, now_ns: int, purpose: LoadPurpose = FOR_ADMITTED, ahead_ns: Mapping[str, int] = {}
    ) -> LoadCandidate | LoadRefusal:
        """The partition that can run a model the soonest, of equal ones that where nothing has to go.

        `ahead_ns` is what partitions load first beside what they were ordered to.
        """
        key, config = model.config.key, self._config
        able = [memory for memory in self._memories.values() if memory.may_hold(model)]
        if not able or key in self._residency.unwanted:
            found = f"the {model.config.most_bytes / _MIB:.3g} MiB that it was found to take"
            return LoadRefusal(f"no partition has room for {found if model.config.weighed else 'it'}", passing=False)
        ranked: list[tuple[int, bool, int, int, PartitionMemory]] = []
        coming: list[tuple[PartitionMemory, int]] = []
        barred = busy = False
        for memory in able:
            partition = memory.partition
            held = key in partition.models or memory.ready_ns(key, now_ns) is not None
            if held or not partition.ready or partition.group is None:
                continue
            if self._residency.barred(partition.name, key, now_ns):
                barred = True
                continue
            coming_ns = ahead_ns.get(partition.name, 0) + memory.load_ns(model, config.load_ns)
            coming.append((memory, coming_ns))
            if memory.loads >= config.loads:
                busy = True
            else:
                ready_ns = memory.loads_end_ns(now_ns) + coming_ns
                start_ns = max(ready_ns, partition.group.start_after_backlog_ns(now_ns))
                lacks = memory.free_bytes < model.config.memory_on(partition.kind)
                if start_ns < purpose.before_ns:
                    ranked.append((start_ns, lacks, partition.number, ready_ns, memory))
        for _, lacks, _, ready_ns, memory in sorted(ranked, key=lambda each: each[:3]):
            leaving = self._leaving(memory, model, now_ns, purpose) if lacks else ()
            if leaving is not None:
                return LoadCandidate(ready_ns, memory, leaving)
        if busy:
            return LoadRefusal("as many others are being loaded as may be", True, self._later_ns(model, coming, now_ns))
        if ranked:
            later_ns = self._later_ns(model, coming, now_ns)
            reason = "all that partitions hold is in use, or stays in their memory"
            return LoadRefusal(reason, later_ns is not None, later_ns)
        if barred:
            return LoadRefusal("it could not be loaded", passing=False)
        passing = any(not memory.partition.ready and not memory.partition.is_gone(now_ns) for memory in able)
        return LoadRefusal("no partition that has room for it is up", passing)

    def surplus(self, memory: PartitionMemory, now_ns: int) -> tuple[str, ...]:
        """What is to leave a partition that holds more than it has memory for, as a model takes more than was believed.

        That is what nobody needs, else what others are only on their way to, else what is waited for as well; all that
        may go if even that is too little.
        """
        lacking, residents = -memory.free_bytes, memory.residents()
        if lacking <= 0 or not residents:
            return ()
        most = max(each.priority for each in residents)
        for purpose in (FOR_ADMITTED, LoadPurpose(blocking=True), None):

            def may_go(key: str, purpose: LoadPurpose | None = purpose) -> bool:
                return purpose is None or self._may_go(self._models[key], memory, now_ns, purpose)

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
        for memory, coming_ns in coming:
            if memory.may_get_room(model) and memory.partition.group is not None:
                backlog_ns = memory.partition.group.start_after_backlog_ns(now_ns)
                ahead = (each for each in self._waiting if each is not model and any(each.queues.values()))
                ahead_ns = sum(memory.load_ns(each, load_ns) + min_resident_ns for each in ahead)
                times_ns.append(max(memory.settled_ns(min_resident_ns, now_ns), backlog_ns) + ahead_ns + coming_ns)
        return min(times_ns, default=None)

    def _leaving(
        self, memory: PartitionMemory, model: ModelState, now_ns: int, purpose: LoadPurpose
    ) -> tuple[str, ...] | None:
        """What is to leave a partition for a model; None if not enough may."""
        if self._config.eviction is Eviction.NONE:
            return None
        models = self._models
        load_ns = memory.load_ns(model, self._config.load_ns)

        def worth(key: str) -> float:
            """The rows lately that call for another model to stay, with those lost to its going and coming back.

            As long as it has been here, so long the other one is expected to stay instead.
            """
            other = models[key]
            if other.config.priority < model.config.priority:
                return 0.0
            return asked_for(other, now_ns) * (1 + 2 * load_ns / max(memory.held_ns(key, now_ns), 1))

        def may_go(key: str) -> bool:
            outweighed = purpose.asked is None or worth(key) < purpose.asked
            return outweighed and self._may_go(models[key], memory, now_ns, purpose)

        lacking = model.config.memory_on(memory.partition.kind) - memory.free_bytes
        leaving = choose_victims(memory.residents(), lacking, model.config.priority, may_go)
        if leaving is not None and purpose.asked is not None and sum(map(worth, leaving)) >= purpose.asked:
            return None
        return leaving

    def _may_go(self, model: ModelState, memory: PartitionMemory, now_ns: int, purpose: LoadPurpose) -> bool:
        """Whether nothing waits for a model, nor is on its way to it, and it has been there for a while."""
        if any(model.queues.values()) or memory.young(model, self._config.min_resident_ns, now_ns):
            return False
        for pipeline in () if purpose.blocking else model.pipelines:
            used = not pipeline.single and (pipeline.outstanding or pipeline is purpose.pipeline)
            if used and pipeline.expected_runs.get(model, 0.0) > 1 - QUANTILE:
                return False
        reserved = self._dispatcher.reserved
        if reserved is None:
            return True
        return not any(slot.queue[0] == model.config.key for slot in reserved.timelines[memory.partition.name].slots)
