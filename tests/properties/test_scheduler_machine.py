"""The scheduler keeps its invariants and settles every request once under any sequence of events."""

from collections.abc import Collection

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.fleet.partition_group import first_idle
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    LoadModel,
    LookUpCache,
    Member,
    RejectRequest,
    ReleaseReason,
    RevokeBatch,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    BatchSuspended,
    CacheHit,
    CacheMiss,
    CombinationFailed,
    FailureCause,
    LoopDelayed,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    OutputsCombined,
    PartitionLost,
    PartitionReady,
    PlanBuilt,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.queues.queue import Queue
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, spec_of
from tests.support.scheduling.draining_machine import DrainingMachine
from tests.support.scheduling.machine_world import KINDS, LIMITS, MAX_BATCH, MODELS, PARTITIONS, PIPELINES, TABLES

MOST_STEPS_TO_DRAIN = 2_000


class SchedulerMachine(DrainingMachine):
    """A driver that takes any action that drivers may take."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(spec_of(MODELS, PIPELINES, partitions=PARTITIONS, limits=LIMITS), LivePlanner())
        self.now_ns = S
        self.arrived: dict[int, RequestArrived] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.up: set[str] = set()
        self.running: dict[str, list[DispatchBatch]] = {name: [] for name in KINDS}
        self.suspended: dict[str, list[tuple[DispatchBatch, int]]] = {name: [] for name in KINDS}
        self.started_ns: dict[int, int] = {}
        self.revoked: set[int] = set()
        self.waited_ns = 0
        self.combining: list[Member] = []
        self.asked: list[Member] = []
        self.building: BuildPlan | None = None
        # The models that each partition may run, and its loads and unloads in progress.
        self.holds: dict[str, set[str]] = {name: set() for name in KINDS}
        self.orders: dict[str, list[LoadModel | UnloadModel]] = {name: [] for name in KINDS}
        # The models that the last plan places.
        self.placed: set[str] = set()

    # -- what a driver does

    def tell(self, event: AnyEvent) -> None:
        self.carry_out(self.scheduler.handle(event, self.now_ns))
        check_invariants(self.scheduler)

    def wake_if_due(self) -> None:
        due_ns = self.scheduler.next_wakeup_ns()
        if due_ns is not None and due_ns <= self.now_ns:
            decisions = self.scheduler.handle_wakeup(self.now_ns)
            self.check_lateness(decisions)
            self.carry_out(decisions)
            check_invariants(self.scheduler)
            due_ns = self.scheduler.next_wakeup_ns()
            assert due_ns is None or due_ns > self.now_ns
        self.check_that_nobody_is_overlooked()

    def check_that_nobody_is_overlooked(self) -> None:
        """Assert that waiting work beside an idle partition has been offered to a policy, or has a wake-up."""
        for group in self.scheduler.dispatcher.fleet.groups:
            run_queue = self.scheduler.dispatcher.wakeups.run_queues[group]
            if first_idle(group) is not None and not all(
                queue in run_queue.deferred
                for queue in self.queues_of(group.models)
                if queue.only in (None, (group.kind, group.price))
            ):
                assert run_queue.wake_ns is not None, f"group {group.number} is idle and not looked at"
            if run_queue.timers:
                assert run_queue.wake_ns is not None, f"group {group.number} is not woken by its timer"

    def queues_of(self, models: Collection[str]) -> list[Queue]:
        """The queues of some models that hold work."""
        queues = self.scheduler.dispatcher.fleet.queues.by_model
        return [queue for key in sorted(models) for queue in queues[key].values() if queue]

    def carry_out(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            match decision:
                case DispatchBatch():
                    self.start(decision)
                case RevokeBatch():
                    self.revoked.add(decision.batch)
                case CombineOutputs():
                    assert decision.member.request not in self.outcomes
                    self.combining.append(decision.member)
                case LookUpCache():
                    assert decision.member.request not in self.outcomes
                    self.asked.append(decision.member)
                case BuildPlan():
                    assert self.building is None, "two plans are built at a time"
                    self.building = decision
                case LoadModel():
                    assert decision.partition in self.up
                    assert decision.model not in self.holds[decision.partition]
                    self.orders[decision.partition].append(decision)
                case UnloadModel():
                    self.forget(decision)
                case CompleteRequest() | RejectRequest() | EvictRequest() | FailRequest() | CancelRequest():
                    self.settle(decision.request, decision.outcome)

    def settle(self, request: int, outcome: Outcome) -> None:
        assert request in self.arrived
        assert request not in self.outcomes, f"request {request} is settled twice"
        self.outcomes[request] = outcome
        if outcome.answered:
            late = self.now_ns > self.arrived[request].deadline_ns
            assert (outcome is Outcome.COMPLETED_LATE) == late

    def forget(self, order: UnloadModel) -> None:
        assert order.partition in self.up
        self.holds[order.partition].remove(order.model)
        held = any(order.model in self.holds[name] for name in self.up)
        assert held or order.model not in self.placed, "a model that has a place is unloaded from its last partition"
        self.orders[order.partition].append(order)

    def start(self, batch: DispatchBatch) -> None:
        assert batch.partition in self.up
        assert batch.partition not in self.overdue, "an overdue partition gets a batch"
        assert batch.model in self.holds[batch.partition], f"{batch.partition} does not hold {batch.model}"
        running = self.running[batch.partition]
        running.append(batch)
        assert len(running) <= 2
        if len(running) == 1:
            self.started_ns[batch.batch] = self.now_ns
        assert batch.rows == sum(member.rows for member in batch.members) <= MAX_BATCH[batch.model]
        for member in batch.members:
            assert member.request not in self.outcomes, "a settled request is dispatched"
            assert member.row_index is None or len(member.row_index) == member.rows
        if batch.model == "shapes:1":
            assert len({self.arrived[member.request].batch_key for member in batch.members}) == 1

    def check_lateness(self, decisions: list[AnyDecision]) -> None:
        """Nothing that is to be evicted when late is dispatched although it is predicted to be late."""
        free_ns = {name: state.free_at_ns for name, state in self.scheduler.dispatcher.fleet.partitions.items()}
        for decision in reversed(decisions):
            if isinstance(decision, DispatchBatch):
                batch = self.scheduler.dispatcher.batches[decision.batch]
                free_ns[decision.partition] -= batch.expected_ns
                ended_ns = free_ns[decision.partition] + LIMITS.hand_off_ns + batch.expected_ns + batch.way_ns
                if decision.reason is not ReleaseReason.RETRY:
                    for entry in batch.entries:
                        late_ns = ended_ns - entry.stage_deadline_ns
                        assert not entry.request.pipeline.evicts or late_ns <= 0, (
                            f"{entry.request.identity} is {late_ns} ns late"
                        )

    def take_first(self, partition: str) -> DispatchBatch:
        """The batch that the worker runs ends; the next one starts."""
        batch = self.running[partition].pop(0)
        if self.running[partition]:
            self.started_ns[self.running[partition][0].batch] = self.now_ns
        return batch

    def complete(self, partition: str, confidences: list[float]) -> None:
        batch = self.take_first(partition)
        reported = (tuple(confidences[row % len(confidences)] for row in range(batch.rows)),)
        started_ns = self.started_ns.pop(batch.batch)
        self.tell(BatchCompleted(batch.batch, started_ns, self.now_ns, reported))

    @property
    def overdue(self) -> list[str]:
        partitions = self.scheduler.dispatcher.fleet.partitions
        return [name for name, state in partitions.items() if state.overdue]

    def held(self, name: str) -> list[DispatchBatch]:
        return [*self.running[name], *(batch for batch, _ in self.suspended[name])]

    def busy(self) -> list[str]:
        return [name for name in KINDS if self.running[name]]

    def answerable(self) -> list[str]:
        """The partitions that can carry out the first of their orders; an unloading waits for the last batch."""
        return [
            name
            for name, orders in self.orders.items()
            if orders
            and (isinstance(orders[0], LoadModel) or all(batch.model != orders[0].model for batch in self.held(name)))
        ]

    def answer_order(self, name: str, *, fails: bool = False) -> None:
        order = self.orders[name].pop(0)
        if isinstance(order, UnloadModel):
            self.tell(ModelUnloaded(name, order.model))
        elif fails:
            self.tell(ModelLoadFailed(name, order.model, "there is no memory left"))
        else:
            self.holds[name].add(order.model)
            self.tell(ModelLoaded(name, order.model, TABLES[KINDS[name]][order.model]))

    # -- what may happen

    @initialize()
    def come_up(self) -> None:
        for name in KINDS:
            self.restore(name)

    @rule(lag_ns=st.integers(0, 3 * MS), waiting=st.integers(0, LIMITS.queue_requests + 2))
    def fall_behind(self, lag_ns: int, waiting: int) -> None:
        """From now on, requests wait for the loop as long as its turn took."""
        self.waited_ns = lag_ns
        self.tell(LoopDelayed(lag_ns, waiting))

    @rule(
        pipeline=st.sampled_from([pipeline.name for pipeline in PIPELINES]),
        rows=st.integers(1, 4),
        slo_ns=st.one_of(st.integers(-MS, 12 * MS), st.integers(MS, 6 * MS), st.just(60 * S)),
        key=st.sampled_from(["x=8", "x=16", "x=24"]),
        memory_bytes=st.integers(0, 8),
        times=st.integers(1, 3),
        priority=st.integers(0, 3),
        timeout_ns=st.sampled_from([0, 0, MS // 2, 5 * MS]),
        max_cost=st.none() | st.just(1e9),
    )
    def arrive(
        self,
        pipeline: str,
        rows: int,
        slo_ns: int,
        key: str,
        memory_bytes: int,
        times: int,
        priority: int,
        timeout_ns: int,
        max_cost: float | None,
    ) -> None:
        expires_ns = self.now_ns + timeout_ns if timeout_ns else 0
        for _ in range(times):
            request = len(self.arrived)
            deadline_ns = self.now_ns + slo_ns
            event = RequestArrived(request, pipeline, rows, deadline_ns, key, memory_bytes, max_cost=max_cost)
            event = msgspec.structs.replace(event, priority=priority, expires_ns=expires_ns)
            event = msgspec.structs.replace(event, received_ns=self.now_ns - self.waited_ns)
            self.arrived[request] = event
            self.tell(event)

    @rule(
        passing_ns=st.one_of(
            st.just(0), st.integers(1, 400_000), st.integers(1, 5 * MS), st.sampled_from([5 * S, 70 * S])
        )
    )
    def advance(self, passing_ns: int) -> None:
        self.advance_to(self.now_ns + passing_ns)

    def advance_to(self, until_ns: int) -> None:
        while True:
            self.wake_if_due()
            due_ns = self.scheduler.next_wakeup_ns()
            if due_ns is None or due_ns > until_ns:
                break
            self.now_ns = due_ns
        self.now_ns = until_ns

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), confidences=st.lists(st.floats(0, 1), min_size=1, max_size=4))
    def complete_one(self, data: st.DataObject, confidences: list[float]) -> None:
        self.complete(data.draw(st.sampled_from(self.busy())), confidences)

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), percent=st.integers(80, 140), confidence=st.floats(0, 1))
    def complete_one_about_when_predicted(self, data: st.DataObject, percent: int, confidence: float) -> None:
        self.wake_if_due()
        name = data.draw(st.sampled_from(self.busy()))
        batch = self.running[name][0]
        predicted_ns = TABLES[KINDS[name]][batch.model].latency_ns(batch.rows)
        ended_ns = self.started_ns[batch.batch] + predicted_ns * percent // 100
        self.advance_to(max(ended_ns, self.now_ns))
        self.complete(name, [confidence, 0.4])

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), ends=st.sampled_from(["late", "lost", "not yet"]), confidence=st.floats(0, 1))
    def let_one_be_overdue(self, data: st.DataObject, ends: str, confidence: float) -> None:
        """A worker stands still while the others run what they have, or stand still as well."""
        self.wake_if_due()
        name = data.draw(st.sampled_from(self.busy()))
        others = data.draw(st.sets(st.sampled_from(sorted(KINDS))))
        self.advance_to(max(self.now_ns, self.started_ns[self.running[name][0].batch] + 101 * MS))
        for other in sorted(others - {name}):
            if self.running[other]:
                self.complete(other, [confidence, 0.4])
        if ends == "late":
            self.complete(name, [confidence, 0.4])
        elif ends == "lost" and name in self.up:
            self.lose(name)

    @precondition(lambda self: self.busy())
    @rule(
        data=st.data(),
        cause=st.sampled_from([FailureCause.BACKEND, FailureCause.OUT_OF_MEMORY, FailureCause.RESOURCES]),
    )
    def fail_one(self, data: st.DataObject, cause: FailureCause) -> None:
        batch = self.take_first(data.draw(st.sampled_from(self.busy())))
        self.started_ns.pop(batch.batch)
        self.tell(BatchFailed(batch.batch, cause, "the model failed"))

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def suspend_one(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.busy()))
        batch = self.take_first(name)
        self.suspended[name].append((batch, self.started_ns.pop(batch.batch)))
        self.tell(BatchSuspended(batch.batch))

    @precondition(lambda self: any(self.suspended.values()))
    @rule(data=st.data(), fails=st.booleans(), confidence=st.floats(0, 1), failing=st.integers(0, 3))
    def end_a_suspended_one(self, data: st.DataObject, fails: bool, confidence: float, failing: int) -> None:
        held = self.suspended[data.draw(st.sampled_from([name for name, held in self.suspended.items() if held]))]
        batch, started_ns = held.pop(data.draw(st.integers(0, len(held) - 1)))
        if fails:
            self.tell(BatchFailed(batch.batch, FailureCause.BACKEND, "the model failed"))
            return
        failures = ((failing, "it is odd"),) if failing < len(batch.members) else ()
        reported = ((confidence,) * batch.rows,)
        self.tell(BatchCompleted(batch.batch, started_ns, self.now_ns, reported, "", failures))

    @precondition(lambda self: any(len(held) == 2 and held[1].batch in self.revoked for held in self.running.values()))
    @rule()
    def take_back_what_was_revoked(self) -> None:
        for held in self.running.values():
            if len(held) == 2 and held[1].batch in self.revoked:
                self.tell(BatchRevoked(held.pop().batch))

    @precondition(lambda self: self.combining)
    @rule(data=st.data(), confidence=st.floats(0, 1))
    def combine_one(self, data: st.DataObject, confidence: float) -> None:
        member = self.combining.pop(data.draw(st.integers(0, len(self.combining) - 1)))
        if confidence == 0:
            self.tell(CombinationFailed(member.request, member.stage, "the shapes differ"))
        else:
            self.tell(OutputsCombined(member.request, member.stage, ((confidence,) * member.rows,)))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), known=st.booleans(), key=st.sampled_from(["x=8", "x=16"]))
    def recall_one(self, data: st.DataObject, known: bool, key: str) -> None:
        member = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        if known:
            self.tell(CacheHit(member.request, member.stage, key))
        else:
            self.tell(CacheMiss(member.request, member.stage))

    @precondition(lambda self: len(self.arrived) > len(self.outcomes))
    @rule(data=st.data())
    def cancel_one(self, data: st.DataObject) -> None:
        self.tell(RequestCancelled(data.draw(st.sampled_from(sorted(self.arrived.keys() - self.outcomes.keys())))))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def lose_one(self, data: st.DataObject) -> None:
        self.lose(data.draw(st.sampled_from(sorted(self.up))))

    def lose(self, name: str) -> None:
        self.up.remove(name)
        self.holds[name].clear()
        self.orders[name].clear()
        self.tell(PartitionLost(name, "killed"))
        self.fail_what_it_held(name)

    def fail_what_it_held(self, name: str, reason: str = "killed") -> None:
        """Report the batches of a worker that was lost."""
        while self.running[name]:
            batch = self.running[name].pop(0)
            self.started_ns.pop(batch.batch, None)
            self.tell(BatchFailed(batch.batch, FailureCause.WORKER_LOST, reason))
        while self.suspended[name]:
            batch, _ = self.suspended[name].pop(0)
            self.tell(BatchFailed(batch.batch, FailureCause.WORKER_LOST, reason))

    @precondition(lambda self: len(self.up) < len(PARTITIONS))
    @rule(data=st.data())
    def restore_one(self, data: st.DataObject) -> None:
        loaded = data.draw(st.one_of(st.just(set(MAX_BATCH)), st.sets(st.sampled_from(sorted(MAX_BATCH)))))
        self.restore(data.draw(st.sampled_from(sorted(set(KINDS) - self.up))), loaded)

    def restore(self, name: str, loaded: Collection[str] = tuple(MAX_BATCH)) -> None:
        """A worker comes back; some models may fail to load this time."""
        self.up.add(name)
        self.holds[name] = set(loaded)
        self.tell(self.ready(name, {key: TABLES[KINDS[name]][key] for key in loaded}))

    def ready(self, name: str, tables: dict[str, LatencyTable]) -> PartitionReady:
        """The event of a worker that comes up."""
        return PartitionReady(name, tables)

    @precondition(lambda self: self.building)
    @rule(
        fails=st.booleans(),
        residency=st.dictionaries(st.sampled_from(sorted(KINDS)), st.sets(st.sampled_from(sorted(MAX_BATCH)))),
    )
    def finish_plan(self, fails: bool, residency: dict[str, set[str]]) -> None:
        order, self.building = self.building, None
        assert order is not None
        plan = None
        if not fails:
            plan = build_plan(self.scheduler.spec, order.observed)
            held = {name: tuple(sorted(models)) for name, models in sorted(residency.items())}
            plan = msgspec.structs.replace(plan, residency=held)
            if residency:
                self.placed = set().union(*residency.values())
        self.tell(PlanBuilt(order.build, plan))

    @precondition(lambda self: self.answerable())
    @rule(data=st.data(), fails=st.booleans())
    def carry_out_an_order(self, data: st.DataObject, fails: bool) -> None:
        self.answer_order(data.draw(st.sampled_from(self.answerable())), fails=fails)

    def drain(self) -> None:
        """Let everything end: every request has its one outcome and nothing is left."""
        for name in sorted(set(KINDS) - self.up):
            self.restore(name)
        for _ in range(MOST_STEPS_TO_DRAIN):
            self.wake_if_due()
            due_ns = self.scheduler.next_wakeup_ns()
            if self.combining:
                member = self.combining.pop()
                self.tell(OutputsCombined(member.request, member.stage, ((0.3,) * member.rows,)))
            elif self.asked:
                member = self.asked.pop()
                self.tell(CacheMiss(member.request, member.stage))
            elif self.building is not None:
                order, self.building = self.building, None
                self.tell(PlanBuilt(order.build, None))
            elif waiting := self.answerable():
                self.answer_order(waiting[0])
            elif busy := self.busy():
                self.complete(busy[0], [0.1, 0.7])
            elif waits := [name for name in KINDS if self.suspended[name]]:
                batch, started_ns = self.suspended[waits[0]].pop()
                self.tell(BatchCompleted(batch.batch, started_ns, self.now_ns, ((0.5,) * batch.rows,), ""))
            elif due_ns is not None:
                self.now_ns = due_ns
            else:
                break
        assert self.outcomes.keys() == self.arrived.keys()
        assert all(
            state.models == self.holds[name] for name, state in self.scheduler.dispatcher.fleet.partitions.items()
        )
        scheduler = self.scheduler
        assert scheduler.requests == {}
        assert scheduler.memory.used_bytes == 0
        assert scheduler.queue_depths() == dict.fromkeys(MAX_BATCH, 0)
        assert all(not each.planned and each.planned_ns == 0 for each in scheduler.dispatcher.fleet.partitions.values())
        assert [state.outstanding for state in scheduler.dispatcher.models.values()] == [0] * len(MODELS)
        assert [state.outstanding for state in scheduler.pipelines.values()] == [0] * len(PIPELINES)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
