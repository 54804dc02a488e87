"""Random loads and retirements of revisions: no admitted request is lost, and nothing is left behind."""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import PartitionConfig, ScheduledModel, SchedulerSpec
from sluice.batcher.interface.decisions import (
    AcceptChange,
    AnyDecision,
    BuildPlan,
    ChangeAnswer,
    DispatchBatch,
    LoadModel,
    RejectChange,
    Settlement,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    PlanBuilt,
    RequestArrived,
    RequestCancelled,
    ServingChanged,
)
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import GAINING, MS, US, S, chain, model, single, spec_of
from tests.support.scheduling.draining_machine import DrainingMachine

PARTITIONS = ("cpu0", "cpu1")
CAPACITY = 100


def sized(key: str, memory_bytes: int) -> ScheduledModel:
    return msgspec.structs.replace(model(key), memory_bytes=memory_bytes)


class ServingMachine(DrainingMachine):
    """Workers that hold the ordered models, and clients that request the last revision or an earlier one."""

    def __init__(self) -> None:
        super().__init__()
        bounded = [PartitionConfig(name, "cpu1", memory_bytes=CAPACITY) for name in PARTITIONS]
        spec = spec_of([sized("m:1", 20), sized("n:1", 20)], partitions=bounded)
        self.scheduler = Scheduler(spec, LivePlanner())
        self.now_ns = S
        self.revision = 0
        self.open = ["m:1", "n:1"]
        self.retired: list[str] = []
        self.holds: dict[str, set[str]] = {}
        self.orders: dict[str, list[LoadModel | UnloadModel]] = {name: [] for name in PARTITIONS}
        self.running: dict[str, list[DispatchBatch]] = {name: [] for name in PARTITIONS}
        self.building: list[tuple[BuildPlan, SchedulerSpec]] = []
        self.answers: dict[str, ChangeAnswer] = {}
        self.waiting: dict[int, str] = {}
        self.arrived = 0

    def tell(self, event: AnyEvent) -> None:
        self.now_ns += US
        self.carry_out(self.scheduler.handle(event, self.now_ns))
        check_invariants(self.scheduler)
        while (due_ns := self.scheduler.next_wakeup_ns()) is not None and due_ns <= self.now_ns:
            self.carry_out(self.scheduler.handle_wakeup(self.now_ns))
            check_invariants(self.scheduler)

    def carry_out(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            match decision:
                case DispatchBatch():
                    assert decision.model in self.holds[decision.partition]
                    self.running[decision.partition].append(decision)
                case LoadModel():
                    self.orders[decision.partition].append(decision)
                case UnloadModel():
                    self.holds[decision.partition].remove(decision.model)
                    self.orders[decision.partition].append(decision)
                case BuildPlan():
                    self.building.append((decision, self.scheduler.spec))
                case AcceptChange(models) | RejectChange(models):
                    assert not self.answers.keys() & set(models), "a change is answered twice"
                    self.answers.update(dict.fromkeys(models, decision))
                case _ if isinstance(decision, Settlement):
                    del self.waiting[decision.request]

    @initialize()
    def come_up(self) -> None:
        for name in PARTITIONS:
            self.restore(name, {"m:1", "n:1"})

    def restore(self, name: str, models: set[str]) -> None:
        self.holds[name] = set(models)
        self.tell(PartitionReady(name, dict.fromkeys(sorted(models), GAINING)))

    @rule(
        late=st.sampled_from(Late),
        size=st.sampled_from((0, 20, 40, 60, 80, 120)),
        chained=st.booleans(),
        is_reload=st.booleans(),
    )
    def add(self, late: Late, size: int, chained: bool, is_reload: bool) -> None:
        self.revision += 1
        key = f"m:1@{self.revision}"
        pipelines = [single(key, late)]
        if chained:
            pipelines.append(chain(key, "n:1", name=f"chain:1@{self.revision}"))
        if "n:1" not in self.scheduler.dispatcher.models or "n:1" in self.scheduler.served.residency.retired:
            pipelines = pipelines[:1]
        served, spec = {name for name in self.scheduler.dispatcher.models if self.copies(name)}, self.scheduler.spec
        self.tell(ServingChanged((sized(key, size),), tuple(pipelines), is_reload=is_reload))
        assert all(self.copies(name) for name in served), "the last copy of a model was spared"
        answer = self.answers[key]
        if isinstance(answer, RejectChange):
            assert size == 120 or is_reload
            assert self.scheduler.spec == spec, "something of a rejected change is served"
        else:
            self.open += [pipeline.name for pipeline in pipelines]
            for name in answer.partitions[key]:
                assert self.coming_bytes(name) <= CAPACITY, f"{name} is to hold more than it has room for"

    def coming_bytes(self, name: str) -> int:
        """The bytes of all models that a partition holds or is to load."""
        held, models = self.scheduler.served.residency.held(name), self.scheduler.spec.models
        return sum(config.memory_bytes for config in models if config.key in held)

    def copies(self, model: str) -> int:
        return sum(model in held for held in self.holds.values())

    @precondition(lambda self: self.open)
    @rule(data=st.data(), gives_up=st.booleans())
    def retire(self, data: st.DataObject, gives_up: bool) -> None:
        """Retire a pipeline; no other pipeline may need its models any more."""
        name = data.draw(st.sampled_from(self.open))
        self.open.remove(name)
        self.retired.append(name)
        self.tell(ServingChanged(retired=(name,)))
        for request in [request for request, pipeline in self.waiting.items() if pipeline == name and gives_up]:
            if request in self.waiting:
                self.tell(RequestCancelled(request))

    @rule(data=st.data(), times=st.integers(1, 4))
    def arrive(self, data: st.DataObject, times: int) -> None:
        name = data.draw(st.sampled_from(self.open + self.retired[-2:]))
        for _ in range(times):
            self.arrived += 1
            self.waiting[self.arrived] = name
            self.tell(RequestArrived(self.arrived, name, 1, self.now_ns + S))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.tell(RequestCancelled(data.draw(st.sampled_from(sorted(self.waiting)))))

    @precondition(lambda self: any(self.orders.values()))
    @rule(data=st.data(), fails=st.booleans())
    def answer(self, data: st.DataObject, fails: bool) -> None:
        self.carry_out_order(data.draw(st.sampled_from([name for name in PARTITIONS if self.orders[name]])), fails)

    def carry_out_order(self, name: str, fails: bool) -> None:
        order = self.orders[name].pop(0)
        if isinstance(order, UnloadModel):
            self.tell(ModelUnloaded(name, order.model))
        elif fails:
            self.tell(ModelLoadFailed(name, order.model, "there is no memory left"))
        else:
            self.holds[name].add(order.model)
            self.tell(ModelLoaded(name, order.model, GAINING))

    @precondition(lambda self: any(self.running.values()))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self.complete_on(data.draw(st.sampled_from([name for name in PARTITIONS if self.running[name]])))

    def complete_on(self, name: str) -> None:
        batch = self.running[name].pop(0)
        self.now_ns += MS
        self.tell(BatchCompleted(batch.batch, self.now_ns - MS, self.now_ns))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A worker is lost, and comes back with what the one before held when it began."""
        name = data.draw(st.sampled_from(sorted(self.holds)))
        models = self.holds.pop(name)
        self.orders[name].clear()
        self.tell(PartitionLost(name, "killed"))
        while self.running[name]:
            self.tell(BatchFailed(self.running[name].pop(0).batch, FailureCause.WORKER_LOST, "killed"))
        self.restore(name, models | {"m:1"})

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def recycle(self, data: st.DataObject) -> None:
        """A worker gets nothing any more and ends what it has; then another one takes its place."""
        name = data.draw(st.sampled_from(sorted(self.holds)))
        models = self.holds.pop(name)
        self.orders[name].clear()
        self.tell(PartitionLost(name, "another one takes its place"))
        while self.running[name]:
            self.complete_on(name)
        self.restore(name, models)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), cores=st.integers(1, 2))
    def resize(self, data: st.DataObject, cores: int) -> None:
        """A worker that holds as much takes another's place; what that one has, it still ends, whenever."""
        name = data.draw(st.sampled_from(sorted(self.holds)))
        if not self.orders[name]:
            tables = dict.fromkeys(sorted(self.holds[name]), GAINING)
            self.tell(PartitionResized(name, f"cpu{cores}", float(cores), cores / 4, tables))

    @precondition(lambda self: self.building)
    @rule()
    def plan(self) -> None:
        """A plan is there for what was served when it was ordered."""
        order, spec = self.building.pop(0)
        self.tell(PlanBuilt(order.build, build_plan(spec, order.observed)))

    def drain(self) -> None:
        """All that is served is retired: every request gets its outcome, and no model stays on any partition."""
        while self.open:
            self.tell(ServingChanged(retired=(self.open.pop(),)))
        for _ in range(2_000):
            if busy := [name for name in PARTITIONS if self.running[name]]:
                self.complete_on(busy[0])
            elif ordered := [name for name in PARTITIONS if self.orders[name]]:
                self.carry_out_order(ordered[0], fails=False)
            elif self.waiting and (due_ns := self.scheduler.next_wakeup_ns()) is not None:
                self.now_ns = max(self.now_ns, due_ns)
                self.carry_out(self.scheduler.handle_wakeup(self.now_ns))
            else:
                break
        assert self.waiting == {}
        assert all(held == set() for held in self.holds.values())
        assert self.scheduler.dispatcher.models == {}
        assert self.scheduler.served.retiring == []


TestServing = ServingMachine.TestCase
TestServing.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
