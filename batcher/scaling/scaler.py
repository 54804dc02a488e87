"""The scaler: has classes of partitions grow and shrink, and lets requests wait for the first one of a class."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.estimates.rate import RateEstimate
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, SetPartitions, UnloadModel
from sluice.batcher.interface.plan_data import PipelinePlan
from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.batcher.scaling.autoscaler import Autoscaler, ClassDemand
from sluice.batcher.scaling.demand import Demand, PartitionPool, StageRows, streams
from sluice.batcher.scaling.windows import RateWindows
from sluice.batcher.state import ModelState, PartitionState, PipelineState
from sluice.models.units import INFINITE_NS, NS_PER_S

START_WEIGHT = 0.3
"""Weight of one start in the smoothed time that a class takes to start a partition."""
OVERDUE = 0.25
"""A start that is overdue is expected to take this part of the time that it has taken so far."""
MOST_GROWTH = 1.2
"""The forecast of a rate is at most this many times the rate of the panic window: steps are left to panic."""
CHANCE = 2
"""A forecast counts where the panic window is this many standard deviations of its count above the stable one."""
TAKEN_AWAY_NS = 10 * NS_PER_S
"""A partition that was to go and is still up after this time may stay in the place of another that went."""
LOCAL_TARGET = 0.7
"""The part of their time that partitions of no class are counted on for, before a class is to grow."""


class ClassStatus(NamedTuple):
    """A class as it is now: the partitions that are wanted, ordered and up, and those that are being given up.

    `demand` are the partitions that would be busy all the time, and `start_ns` is how long one takes to start.
    """

    wanted: int
    ordered: int
    ready: int
    leaving: int
    is_panicking: bool
    demand: ClassDemand
    start_ns: int


class PartitionStart(NamedTuple):
    """A request has to wait for a partition of a class: it would be complete at `done_ns`."""

    name: str
    model: str
    done_ns: int


class Scaler:
    """Looks at the demand every `every_ns`, and orders workers for classes or gives partitions up.

    A partition is closed before it is given up: it gets no more batches, and is ordered to go once it has none. If it
    is wanted again before that, it is opened again. `reconsider` is called with partitions that were closed or opened,
    `is_used` is true of a partition and a model that sequences go on with, and `is_served` of a model that some
    pipeline needs. `loading` are the models that a partition is loading, and `plans` the plans in force by pipeline.

    `classes` are those of the spec. From `next_ns` on, any wake-up calls `review`; `wake_ns` is when one is needed
    for that.
    """

    enabled = True

    def __init__(
        self,
        spec: SchedulerSpec,
        fleet: Fleet,
        pipelines: Mapping[str, PipelineState],
        reconsider: Callable[[str, int], None],
        is_used: Callable[[str, str], bool],
        loading: Callable[[str], Collection[str]],
        is_served: Callable[[str], bool],
        plans: Callable[[], Mapping[str, PipelinePlan]],
    ) -> None:
        self._config = spec.scaling
        self._fleet = fleet
        self._pipelines = pipelines
        self._reconsider = reconsider
        self._is_used = is_used
        self._loading = loading
        self._is_served = is_served
        self._plans = plans
        self._hand_off_ns = spec.limits.hand_off_ns
        self.classes = [ScaledPartitions(each, spec, fleet) for each in spec.scaling.classes]
        self._class_of = {slot.name: each for each in self.classes for slot in each.slots}
        self._windows = RateWindows(spec.scaling.stable_ns)
        self._rates: dict[str, RateEstimate] = {}
        self._sampled_ns: int | None = None
        self.next_ns = 0
        self.wake_ns: int | None = 0

    def status(self) -> dict[str, ClassStatus]:
        """The classes by name."""
        return {each.scaled.name: each.status() for each in self.classes}

    # -- partitions

    def ready(self, name: str, now_ns: int) -> None:
        """Record that the worker of a partition is up; called before the fleet knows."""
        if (found := self._class_of.get(name)) is not None:
            found.came_up(name, now_ns)

    def lost(self, name: str, now_ns: int) -> None:
        """Record that the worker of a partition is gone; called before the fleet knows."""
        if (found := self._class_of.get(name)) is not None:
            found.went(self._fleet.partitions[name], now_ns)

    # -- requests

    def forecast(self, pipeline: PipelineState, now_ns: int) -> PartitionStart | None:
        """The prediction for a request whose models no partition holds that is up; a partition of a class is ordered.

        None if partitions that are up hold all models, if others are expected back, or if no class may hold them.
        """
        missing = [stage.model for stage in pipeline.stages if stage.model is not None and not stage.model.served]
        start: PartitionStart | None = None
        asked = []
        for model in missing:
            if any(not host.is_scaled and not host.is_gone(now_ns) for host in model.partitions):
                return None
            able = [each for each in self.classes if not each.serving and each.may_run(model)]
            if not able:
                return None
            soonest = min(able, key=lambda each: each.remaining_ns(now_ns))
            asked.append(soonest)
            done_ns = now_ns + soonest.remaining_ns(now_ns) + pipeline.critical_path_ns
            if start is None or done_ns > start.done_ns:
                start = PartitionStart(soonest.scaled.name, model.config.key, done_ns)
        for each in asked:
            self._ask(each, now_ns)
        return start

    def start_for(self, models: Sequence[str], now_ns: int) -> None:
        """Have partitions started for new models, none of which can be loaded by a partition that is up."""
        for model in map(self._fleet.models.__getitem__, models):
            able = [each for each in self.classes if each.may_run(model)]
            if able:
                self._ask(min(able, key=lambda each: each.remaining_ns(now_ns)), now_ns)

    def _ask(self, asked: ScaledPartitions, now_ns: int) -> None:
        """Have a class get a partition at the next wake-up, which is now, if it has none."""
        asked.autoscaler.note_traffic(now_ns)
        if asked.wanted < 1:
            asked.asked = True
            self.next_ns = now_ns
            self.wake_ns = now_ns

    def expected(self, model: ModelState) -> str:
        """The class of which a partition is being started that may run a model; "" without one."""
        return next(
            (each.scaled.name for each in self.classes if (each.starting > 0 or each.asked) and each.may_run(model)),
            "",
        )

    # -- looks

    def review(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Look at the demand if it is time, and give the orders that follow."""
        config, since_ns = self._config, self._sampled_ns
        if since_ns is None or now_ns - since_ns >= config.every_ns:
            self._look(now_ns, decisions)
        for each in self.classes:
            if each.asked:
                each.asked = False
                if each.wanted < 1:
                    each.wanted = 1
                    self._follow(each, now_ns, decisions)
        assert self._sampled_ns is not None, "the first review is a look"
        self.next_ns = max(self._sampled_ns + config.every_ns, now_ns + 1)
        settled = all(each.is_settled(now_ns) for each in self.classes)
        self.wake_ns = None if settled else self.next_ns

    def _look(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Take a sample of the rates, and decide about each class."""
        config = self._config
        elapsed_ns = 0 if self._sampled_ns is None else now_ns - self._sampled_ns
        self._sampled_ns = now_ns
        counts = {name: pipeline.arrived_rows for name, pipeline in self._pipelines.items()}
        self._windows.sample(now_ns, counts)
        panic, lately = self._windows.rates(config.panic_ns), self._windows.rates(max(elapsed_ns, 1))
        self._rates = {name: self._rates.get(name) or RateEstimate() for name in counts}
        for name, rows in counts.items():
            if elapsed_ns:
                self._rates[name].take(rows, elapsed_ns)
        demand = Demand(self._fixed(), [each.hosts for each in self.classes], self._hand_off_ns)
        plans = self._plans()
        stable = self._windows.rates(config.stable_ns)
        stable_loads = demand.loads(streams(self._pipelines, stable, plans))
        panic_loads = demand.loads([*streams(self._pipelines, panic, plans), *self._waiting()])
        recent_loads = demand.loads(streams(self._pipelines, lately, plans))
        ahead_loads: dict[int, list[float]] = {}
        for number, each in enumerate(self.classes):
            if recent_loads[number] > 0:
                each.autoscaler.note_traffic(now_ns)
            steps = round(each.start_ns / config.every_ns) + 1
            if steps not in ahead_loads:
                ahead = self._ahead(stable, panic, steps)
                is_same = ahead == stable
                ahead_loads[steps] = stable_loads if is_same else demand.loads(streams(self._pipelines, ahead, plans))
            each.load = ClassDemand(stable_loads[number], panic_loads[number], ahead_loads[steps][number])
            each.wanted = each.autoscaler.wanted(now_ns, each.load, each.serving, int(each.start_ns))
            self._follow(each, now_ns, decisions)

    def _ahead(self, stable: Mapping[str, float], panic: Mapping[str, float], steps: int) -> dict[str, float]:
        """The rates that grow, as they are expected after this number of looks; the stable ones of the others."""
        window_s = self._config.panic_ns / NS_PER_S
        ahead = dict(stable)
        for name, rate in panic.items():
            if rate > stable[name] + CHANCE * math.sqrt(rate / window_s):
                ahead[name] = min(self._rates[name].ahead(steps), MOST_GROWTH * rate)
        return ahead

    def _waiting(self) -> list[StageRows]:
        """The rows that wait in queues, to be worked off within the panic window.

        Clients that wait for their answers send no more than is served, so that their rate does not show the load.
        """
        window_s = self._config.panic_ns / NS_PER_S
        found = []
        for model in self._fleet.models.values():
            if model.outstanding:
                rows = sum(queue.rows for queue in self._fleet.queues.of(model))
                found.append(StageRows(model, rows / window_s, INFINITE_NS))
        return [stream for stream in found if stream.rows]

    def _fixed(self) -> list[PartitionPool]:
        """The partitions of no class that are up."""
        found = []
        for group in self._fleet.groups:
            count = sum(each.ready and not each.is_scaled for each in group.partitions.values())
            if count and group.models:
                found.append(PartitionPool(group.kind, group.models, count, LOCAL_TARGET))
        return found

    # -- orders

    def _follow(self, each: ScaledPartitions, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Order workers for a class, or give up partitions, until it has as many as are wanted."""
        self._keep_untaken(each, now_ns, decisions)
        before = each.ordered
        draining = [name for name in each.going if name not in each.leaving]
        excess = each.ordered - len(draining) - each.wanted
        for name in reversed(draining):
            if excess < 0:
                self._open(each, name, now_ns, decisions)
                excess += 1
        if excess < 0:
            each.order(-excess, now_ns)
        elif excess > 0:
            dropped = min(excess, each.starting)
            each.drop(dropped)
            self._close(each, excess - dropped, now_ns)
        self._forget_absent(each)
        done = [name for name in each.going if name not in each.leaving and self._is_drained(name)]
        each.give_up(done, now_ns)
        if each.ordered != before or done or not each.is_ordered:
            each.begin(now_ns)
            decisions.append(SetPartitions(each.scaled.name, each.ordered, tuple(done)))

    def _close(self, each: ScaledPartitions, count: int, now_ns: int) -> None:
        """Close this number of partitions: idle ones first, of these those that hold the least, then the last ones.

        One stays if it alone holds some model, unless none is wanted, and one stays that sequences or a load need. The
        last partitions of a class go only if they are idle.
        """
        candidates = [slot for slot in each.slots if slot.ready and not slot.closed]
        for slot in sorted(candidates, key=self._cost_of_closing):
            if count <= 0:
                return
            if any(self._is_used(slot.name, key) for key in slot.models) or self._loading(slot.name):
                continue
            alone = any(self._is_sole_host(slot, key) for key in slot.models)
            if alone and (each.wanted or _has_work(slot)):
                continue
            each.going[slot.name] = slot.models
            self._fleet.close(slot)
            self._reconsider(slot.name, now_ns)
            count -= 1

    def _cost_of_closing(self, slot: PartitionState) -> tuple[bool, int, int]:
        held = sum(self._fleet.models[key].config.memory_on(slot.kind) for key in slot.models)
        return _has_work(slot), held, -slot.number

    def _is_sole_host(self, slot: PartitionState, key: str) -> bool:
        return sum(group.ready_count for group in self._fleet.models[key].groups) <= 1

    def _open(self, each: ScaledPartitions, name: str, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Open a closed partition again; it unloads models that are no longer served."""
        held = each.going.pop(name)
        each.leaving.pop(name, None)
        served = frozenset(filter(self._is_served, held))
        decisions.extend(UnloadModel(name, key) for key in sorted(held - served))
        self._fleet.open(self._fleet.partitions[name], served)
        self._reconsider(name, now_ns)

    def _is_drained(self, name: str) -> bool:
        return not _has_work(self._fleet.partitions[name])

    def _keep_untaken(self, each: ScaledPartitions, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Keep partitions that were to go and are still up, where others are missing: those went in their place."""
        for name, since_ns in list(each.leaving.items()):
            if each.starting > 0 and now_ns - since_ns >= TAKEN_AWAY_NS:
                self._open(each, name, now_ns, decisions)

    def _forget_absent(self, each: ScaledPartitions) -> None:
        """Expect no worker where none is ordered: lost partitions that no order is for."""
        absent = [slot for slot in each.slots if not slot.ready and slot.models]
        for slot in absent[max(each.starting, 0) :]:
            self._fleet.close(slot)


class NoScaler:
    """Replaces `Scaler` where no class is scaled."""

    enabled = False

    def __init__(self) -> None:
        self.wake_ns: int | None = None
        self.next_ns = INFINITE_NS

    def status(self) -> dict[str, ClassStatus]:
        """There is no class."""
        return {}

    def ready(self, name: str, now_ns: int) -> None:
        """It is not counted."""

    def lost(self, name: str, now_ns: int) -> None:
        """It is not counted."""

    def forecast(self, pipeline: PipelineState, now_ns: int) -> PartitionStart | None:
        """No partition can be started."""

    def start_for(self, models: Sequence[str], now_ns: int) -> None:
        """No partition can be started."""

    def expected(self, model: ModelState) -> str:
        """No partition is being started."""
        return ""

    def review(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Nothing is ever due."""


class ScaledPartitions:
    """The partitions of one class.

    `ordered` are the slots that are to have workers, those included that are closed and not yet `leaving`. `going` are
    the closed partitions, with the models that they hold. `leaving` are those of them that were ordered to go, with the
    time of the order.
    """

    def __init__(self, scaled: ScaledClass, spec: SchedulerSpec, fleet: Fleet) -> None:
        first = next(each for each in spec.partitions if each.name == scaled.slots[0])
        models = None if first.models is None else frozenset(first.models)
        self.scaled = scaled
        self.slots = [fleet.partitions[name] for name in scaled.slots]
        self.hosts = PartitionPool(first.kind, models, scaled.most, scaled.target, first.price)
        self.autoscaler = Autoscaler(spec.scaling, scaled)
        self.wanted = self.ordered = scaled.initial
        self.start_ns = float(scaled.start_ns)
        self.load = ClassDemand(0.0, 0.0)
        self.going: dict[str, frozenset[str]] = {}
        self.leaving: dict[str, int] = {}
        self.asked = False
        self.is_ordered = False
        self._starts_ns: deque[int] = deque()

    @property
    def starting(self) -> int:
        """Slots that are to have workers and have none yet."""
        return self.ordered - sum(slot.ready and slot.name not in self.leaving for slot in self.slots)

    @property
    def serving(self) -> int:
        """Partitions that are up and get batches."""
        return sum(slot.ready and not slot.closed for slot in self.slots)

    def may_run(self, model: ModelState) -> bool:
        """True if its partitions may hold a model."""
        return self.hosts.may_run(model)

    def remaining_ns(self, now_ns: int) -> int:
        """The time until the next partition is up, if one is ordered at the latest now; none if one was only to go."""
        if self.going.keys() - self.leaving.keys():
            return 0
        if self.starting <= 0 or not self._starts_ns:
            return int(self.start_ns)
        elapsed_ns = now_ns - self._starts_ns[0]
        return int(max(self.start_ns - elapsed_ns, OVERDUE * elapsed_ns))

    def is_settled(self, now_ns: int) -> bool:
        """True if nothing happens until traffic comes."""
        at_rest = self.ordered == self.wanted == self.scaled.initial and not self.going
        return at_rest and self.is_ordered and not self.asked and self.autoscaler.is_settled(now_ns)

    def status(self) -> ClassStatus:
        """The class as it is now."""
        panics, start_ns = self.autoscaler.is_panicking, int(self.start_ns)
        return ClassStatus(self.wanted, self.ordered, self.serving, len(self.going), panics, self.load, start_ns)

    def begin(self, now_ns: int) -> None:
        """Record an order; the first one is when those start that are to be up from the beginning."""
        if not self.is_ordered:
            self.is_ordered = True
            missing = self.starting - len(self._starts_ns)
            self._starts_ns.extend([now_ns] * missing)

    def order(self, count: int, now_ns: int) -> None:
        """Record that this number of further slots are to have workers."""
        self.ordered += count
        self._starts_ns.extend([now_ns] * count)

    def drop(self, count: int) -> None:
        """Record that this number of slots without a worker are to have none after all."""
        self.ordered -= count
        for _ in range(min(count, len(self._starts_ns))):
            self._starts_ns.pop()

    def give_up(self, names: Sequence[str], now_ns: int) -> None:
        """Record that closed partitions are ordered to go."""
        self.ordered -= len(names)
        self.leaving |= dict.fromkeys(names, now_ns)

    def came_up(self, name: str, now_ns: int) -> None:
        """Record that a slot has a new worker: learn how long it took."""
        self.going.pop(name, None)
        self.leaving.pop(name, None)
        if self._starts_ns:
            self.start_ns += START_WEIGHT * (now_ns - self._starts_ns.popleft() - self.start_ns)
        up = sum(slot.ready or slot.name == name for slot in self.slots) - len(self.leaving)
        self.ordered = max(self.ordered, up)

    def went(self, slot: PartitionState, now_ns: int) -> None:
        """Record that the worker of a slot is gone: it left, or another one is to come."""
        self.going.pop(slot.name, None)
        if self.leaving.pop(slot.name, None) is None and slot.ready:
            self._starts_ns.append(now_ns)


def _has_work(slot: PartitionState) -> bool:
    return bool(slot.batches or slot.suspended or slot.planned)
