"""Each request of a sequence runs once at most, in order, where the state of the requests before it is.

The machine is a driver with workers that remember, for each slot, the requests that ran there since the last start. The
journal of each run replays to the same decisions.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.interface.config import ScheduledModel, SequenceConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CancelRequest,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    RejectRequest,
    RevokeBatch,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    BatchSuspended,
    FailureCause,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.sequence_batching import SequenceStep
from tests.support.scheduling.builders import GAINING, MS, ONE, S, chain, model, single, spec_of
from tests.support.scheduling.draining_machine import DrainingMachine

IDLE_NS = 20 * MS
SLOTS = {"direct:1": 2, "oldest:1": 3}
MODELS = (
    ScheduledModel("direct:1", 2, TimeoutConfig(), sequences=SequenceConfig(2, IDLE_NS)),
    ScheduledModel("oldest:1", 2, TimeoutConfig((2,), MS), sequences=SequenceConfig(3, 2 * IDLE_NS, "ID", "UINT64")),
    model("plain:1", 4),
)
PIPELINES = (*(single(each.key) for each in MODELS), chain("plain:1", "direct:1", "oldest:1"))
TABLES = {"direct:1": ONE, "oldest:1": GAINING, "plain:1": GAINING}
NAMES = ("cpu0", "cpu1", "cpu2")
MOST_STEPS_TO_DRAIN = 2_000


class SequenceMachine(DrainingMachine):
    """A driver whose workers remember what ran in their slots."""

    def __init__(self) -> None:
        super().__init__()
        spec = spec_of(MODELS, PIPELINES, partitions=NAMES)
        self.scheduler = Scheduler(spec)
        self.lines: list[bytes] = []
        self.journal = JournalWriter(self.lines.append, spec)
        self.now_ns = S
        self.arrived: dict[int, RequestArrived] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.running: dict[str, list[DispatchBatch]] = {name: [] for name in NAMES}
        self.suspended: dict[str, list[DispatchBatch]] = {name: [] for name in NAMES}
        self.up: set[str] = set()
        # By partition, model and slot: the requests that ran there since the last start.
        self.slots: dict[tuple[str, str, int], list[int]] = {}
        # The requests that ran, with the model.
        self.ran: set[tuple[int, str]] = set()

    # -- what a driver does

    def tell(self, event: AnyEvent) -> None:
        decisions = self.scheduler.handle(event, self.now_ns)
        self.journal.record(self.now_ns, event, decisions)
        self.carry_out(decisions)
        check_invariants(self.scheduler)

    def wake_if_due(self) -> None:
        due_ns = self.scheduler.next_wakeup_ns()
        if due_ns is not None and due_ns <= self.now_ns:
            decisions = self.scheduler.handle_wakeup(self.now_ns)
            self.journal.record(self.now_ns, None, decisions)
            due_ns = self.scheduler.next_wakeup_ns()
            assert due_ns is None or due_ns > self.now_ns
            self.carry_out(decisions)  # which tells of batches that are taken back
            check_invariants(self.scheduler)

    def advance_to(self, until_ns: int) -> None:
        while True:
            self.wake_if_due()
            due_ns = self.scheduler.next_wakeup_ns()
            if due_ns is None or due_ns > until_ns:
                break
            self.now_ns = due_ns
        self.now_ns = until_ns

    def carry_out(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            match decision:
                case DispatchBatch():
                    self.start(decision)
                case RevokeBatch():
                    for name in NAMES:
                        later = [batch for batch in self.running[name][1:] if batch.batch == decision.batch]
                        for batch in later:
                            self.running[name].remove(batch)
                            self.tell(BatchRevoked(batch.batch))
                case CompleteRequest() | RejectRequest() | EvictRequest() | FailRequest() | CancelRequest():
                    assert decision.request not in self.outcomes, "a request has two outcomes"
                    self.outcomes[decision.request] = decision.outcome

    def start(self, batch: DispatchBatch) -> None:
        assert batch.partition in self.up
        self.running[batch.partition].append(batch)
        if batch.model == "plain:1":
            assert batch.sequences == ()
            return
        slots = [row.slot for row in batch.sequences]
        assert len(slots) == len(set(slots)) == batch.rows, "two rows of a batch have one slot"
        assert all(0 <= slot < SLOTS[batch.model] for slot in slots)
        taken = {
            row.slot for each in self.suspended[batch.partition] if each.model == batch.model for row in each.sequences
        }
        assert taken.isdisjoint(slots), "a request runs while one before it waits"

    def run_first(self, name: str) -> DispatchBatch:
        """The worker runs a batch: each row is where the state of its sequence is."""
        batch = self.running[name].pop(0)
        for member, row in zip(batch.members, batch.sequences, strict=False):
            request, arrival = member.request, self.arrived[member.request]
            assert row.step == arrival.sequence
            assert (request, batch.model) not in self.ran, "a request of a sequence runs twice"
            self.ran.add((request, batch.model))
            slot = (name, batch.model, row.slot)
            if row.step.start:
                self.slots[slot] = []
            else:
                before = self.slots.get(slot)
                assert before, f"request {request} runs without a state"
                last = self.arrived[before[-1]].sequence
                assert last is not None
                assert last.id == row.step.id, f"request {request} runs on the state of another sequence"
                assert not last.end, f"request {request} runs on the state of a sequence that has ended"
                assert self.previous(request, batch.model) in {None, *before}, f"request {request} lacks one before it"
            self.slots[slot].append(request)
        return batch

    def previous(self, request: int, key: str) -> int | None:
        """The last request before one that the same sequence has run; None if that is not certain."""
        arrival = self.arrived[request]
        if arrival.pipeline != key:
            return None  # it may have been overtaken in the stage before
        mine = [
            each
            for each in range(request)
            if self.arrived[each].pipeline == key
            and (step := self.arrived[each].sequence) is not None
            and arrival.sequence is not None
            and step.id == arrival.sequence.id
            and (each, key) in self.ran
        ]
        return mine[-1] if mine else None

    def busy(self) -> list[str]:
        return [name for name in NAMES if self.running[name]]

    def of_one_model(self) -> list[str]:
        """The partitions that run batches of one model with sequences and of no other."""
        models = {name: {batch.model for batch in self.running[name]} for name in NAMES}
        alone = [name for name in NAMES if len(models[name]) == 1 and not self.suspended[name]]
        return [name for name in alone if "plain:1" not in models[name]]

    def lose(self, name: str) -> None:
        self.up.discard(name)
        self.tell(PartitionLost(name, "it died"))
        self.slots = {slot: ran for slot, ran in self.slots.items() if slot[0] != name}
        for batch in (*self.running[name], *self.suspended[name]):
            self.tell(BatchFailed(batch.batch, FailureCause.WORKER_LOST, "it died"))
        self.running[name] = []
        self.suspended[name] = []

    def restore(self, name: str) -> None:
        self.up.add(name)
        self.tell(PartitionReady(name, dict(TABLES)))

    # -- what may happen

    @initialize()
    def come_up(self) -> None:
        for name in NAMES:
            self.restore(name)

    @rule(
        pipeline=st.sampled_from([each.name for each in PIPELINES]),
        identity=st.integers(0, 7),
        start=st.booleans(),
        end=st.booleans(),
        times=st.integers(1, 4),
        rows=st.sampled_from([1, 1, 1, 2]),
        timeout_ns=st.sampled_from([0, 0, 0, 3 * MS]),
    )
    def arrive(
        self, pipeline: str, identity: int, start: bool, end: bool, times: int, rows: int, timeout_ns: int
    ) -> None:
        for turn in range(times):
            request = len(self.arrived)
            step = SequenceStep(identity, start and not turn, end and turn == times - 1) if identity else None
            expires_ns = self.now_ns + timeout_ns if timeout_ns else 0
            event = RequestArrived(request, pipeline, rows, self.now_ns + 50 * MS, expires_ns=expires_ns, sequence=step)
            self.arrived[request] = event
            self.tell(event)

    @rule(passing_ns=st.one_of(st.just(0), st.integers(1, 5 * MS), st.sampled_from([25 * MS, 6 * S])))
    def advance(self, passing_ns: int) -> None:
        self.advance_to(self.now_ns + passing_ns)

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def complete_one(self, data: st.DataObject) -> None:
        batch = self.run_first(data.draw(st.sampled_from(self.busy())))
        self.tell(BatchCompleted(batch.batch, self.now_ns, self.now_ns))

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), cause=st.sampled_from([FailureCause.BACKEND, FailureCause.OUT_OF_MEMORY]))
    def fail_one(self, data: st.DataObject, cause: FailureCause) -> None:
        """A batch fails after it has run, which the sequences may not count twice."""
        batch = self.run_first(data.draw(st.sampled_from(self.busy())))
        self.tell(BatchFailed(batch.batch, cause, "it failed"))

    @precondition(lambda self: self.of_one_model())
    @rule(data=st.data())
    def lose_states(self, data: st.DataObject) -> None:
        """The process of a model ends with a batch: its worker refuses what needs a state of before."""
        name = data.draw(st.sampled_from(self.of_one_model()))
        first, *later = self.running[name]
        self.slots = {slot: ran for slot, ran in self.slots.items() if slot[:2] != (name, first.model)}
        self.running[name].remove(first)
        self.tell(BatchFailed(first.batch, FailureCause.STATES_LOST, "it ended"))
        for batch in later:
            if batch in self.running[name] and not all(row.step.start for row in batch.sequences):
                self.running[name].remove(batch)
                self.tell(BatchFailed(batch.batch, FailureCause.STATES_LOST, "it has no state"))

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def suspend_one(self, data: st.DataObject) -> None:
        """A model has seen its batch, and waits for others: no later request of its sequences may run yet."""
        name = data.draw(st.sampled_from(self.busy()))
        batch = self.run_first(name)
        self.suspended[name].append(batch)
        self.tell(BatchSuspended(batch.batch))

    @precondition(lambda self: any(self.suspended.values()))
    @rule(data=st.data(), outcome=st.sampled_from(["ran", "one failed", "failed"]))
    def end_a_suspended_one(self, data: st.DataObject, outcome: str) -> None:
        self.end_suspended(data.draw(st.sampled_from([name for name in NAMES if self.suspended[name]])), outcome)

    def end_suspended(self, name: str, outcome: str) -> None:
        batch = self.suspended[name].pop(0)
        if outcome == "failed":
            self.tell(BatchFailed(batch.batch, FailureCause.BACKEND, "it failed"))
            return
        failures = ((0, "it is odd"),) if outcome == "one failed" else ()
        self.tell(BatchCompleted(batch.batch, self.now_ns, self.now_ns, (), "", failures))

    @precondition(lambda self: len(self.up) > 1)
    @rule(data=st.data())
    def lose_one(self, data: st.DataObject) -> None:
        self.lose(data.draw(st.sampled_from(sorted(self.up))))

    @precondition(lambda self: len(self.up) < len(NAMES))
    @rule(data=st.data())
    def restore_one(self, data: st.DataObject) -> None:
        self.restore(data.draw(st.sampled_from(sorted(set(NAMES) - self.up))))

    @precondition(lambda self: any(not (self.running[name] or self.suspended[name]) for name in self.up))
    @rule(data=st.data())
    def replace_one(self, data: st.DataObject) -> None:
        """Another worker, without any state, takes the place of an idle one."""
        self.wake_if_due()
        idle = [name for name in sorted(self.up) if not (self.running[name] or self.suspended[name])]
        if idle:
            name = data.draw(st.sampled_from(idle))
            self.slots = {slot: ran for slot, ran in self.slots.items() if slot[0] != name}
            self.tell(PartitionResized(name, "cpu1", 1.0, 1.0, dict(TABLES)))

    @precondition(lambda self: len(self.outcomes) < len(self.arrived))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = [request for request in self.arrived if request not in self.outcomes]
        self.tell(RequestCancelled(data.draw(st.sampled_from(waiting))))

    def drain(self) -> None:
        """All requests get their outcome, and no slot stays in use once its sequence has been idle."""
        for _ in range(MOST_STEPS_TO_DRAIN):
            self.wake_if_due()
            if busy := self.busy():
                batch = self.run_first(busy[0])
                self.tell(BatchCompleted(batch.batch, self.now_ns, self.now_ns))
            elif waiting := [name for name in NAMES if self.suspended[name]]:
                self.end_suspended(waiting[0], "ran")
            elif len(self.outcomes) < len(self.arrived) and (due_ns := self.scheduler.next_wakeup_ns()) is not None:
                self.now_ns = max(self.now_ns, due_ns)
            else:
                break
        assert self.outcomes.keys() == self.arrived.keys(), "a request has no outcome"
        self.advance_to(self.now_ns + 3 * IDLE_NS)
        sequences = self.scheduler.dispatcher.sequences
        for table in sequences._tables.values():
            assert not table.open, "a sequence never ends"
            assert not any(host.used for host in table.hosts.values()), "a slot is lost"
        assert not sequences._of, "a request that has ended is remembered"
        assert replay(self.lines) is None


SequenceMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSequences = SequenceMachine.TestCase
