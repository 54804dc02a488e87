"""The simulator: drives a scheduler in virtual time, with batches that take as long as a service model says."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from sluice.batcher.drivers.loop_turns import LoopTurns, is_spent
from sluice.batcher.drivers.simulated_machine import Host, Service
from sluice.batcher.drivers.simulated_nodes import NodeLost, SimulatedNode, SimulatedNodes
from sluice.batcher.drivers.simulated_workers import SimulatedWorkers
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    CombineOutputs,
    DispatchBatch,
    JudgeSteps,
    LoadModel,
    LookUpCache,
    ResizePartition,
    RevokeBatch,
    SetPartitions,
    Settlement,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    PRIORITY,
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    CacheMiss,
    FailureCause,
    ModelLoaded,
    ModelUnloaded,
    OutputsCombined,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    PlanBuilt,
    RequestArrived,
    ResizeFailed,
    StepsJudged,
)
from sluice.batcher.interface.planner_protocol import BuildPlans
from sluice.batcher.interface.resize_data import Ask
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable


class Simulator:
    """A discrete-event loop around a scheduler.

    A worker runs its batches one after the other; combiners take no time. `observe` is called with every step (time,
    event or None for a wake-up, decisions), which is also what a journal records. `answered` is called when the client
    of a request has its answer, which is later than the step unless `host` takes no time. `tables` are, by partition,
    those of the models that may be loaded there; planning takes no time, and loading what `load_ns` says. A partition
    carries orders to load and to unload out one after the other. A planned event may resize a partition, and so may the
    answer of `resize` to an order: `service` has to know which batches came after it. `stray_ns` draws by how much a
    batch's way to its worker, or back, is longer (or shorter) than `host` says. Partitions on `nodes` are reached over
    the links of these. With `measures`, the links are measured at time 0. A slot of a scaled class has a worker with
    the models of `tables` when `start_ns` has passed since it was ordered, or since the one before was lost. `report`
    is called with the time and each planned event that is due, and returns what is reported in its place, such as the
    failure of a batch or of a load. The batches of a lost worker fail.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        service: Service,
        observe: Callable[[int, AnyEvent | None, list[AnyDecision]], None],
        host: Host | None = None,
        answered: Callable[[int, int], None] | None = None,
        build_plan: BuildPlans | None = None,
        tables: Mapping[str, Mapping[str, LatencyTable]] | None = None,
        stray_ns: Callable[[], int] | None = None,
        load_ns: Callable[[LoadModel], int] | None = None,
        resize: Callable[[ResizePartition], PartitionResized | ResizeFailed] | None = None,
        judge: Callable[[SchedulerSpec, JudgeSteps], Ask | None] | None = None,
        nodes: Sequence[SimulatedNode] = (),
        start_ns: Callable[[str], int] | None = None,
        report: Callable[[int, AnyEvent], AnyEvent] | None = None,
        *,
        measures: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._service = service
        self._observe = observe
        self._host = host or Host()
        self._takes_time = self._host != Host()
        self._answered = answered
        self._build_plan = build_plan
        self._tables = dict(tables or {})
        self._stray_ns = stray_ns or (lambda: 0)
        self._load_ns = load_ns or (lambda order: 0)
        self._resize = resize or (lambda order: ResizeFailed(order.partition, "no other size is known"))
        self._report = report
        self._judge = judge or (lambda spec, order: None)
        self._workers = SimulatedWorkers(scheduler.spec, start_ns or (lambda slot: 0))
        self.nodes = SimulatedNodes(nodes, scheduler.spec)
        self._has_nodes = bool(nodes)
        self._leaving: list[tuple[int, int, DispatchBatch, BatchCompleted]] = []
        self._came_up: dict[str, PartitionReady] = {}
        self._orders_end_ns: dict[str, int] = {}
        self._planned: list[tuple[int, int, int, AnyEvent | NodeLost]] = []
        self._sequence = 0
        self._free_ns: dict[str, int] = {}
        self._known_ns: dict[str, int] = {}
        self._started_ns: dict[int, tuple[str, int, int, int]] = {}
        self._answers: list[int] = []
        self._arrived: deque[AnyEvent] = deque()
        self._wake_ns: int | None = None
        self._turns = LoopTurns()
        # The loop took what had come by `_turn_ns`, handles it at `now_ns` and is busy until `_idle_ns`.
        self._turn_ns = 0
        self._idle_ns = 0
        self.now_ns = 0
        for measured in self.nodes.measured() if measures else ():
            self.at(0, measured)

    def at(self, time_ns: int, event: AnyEvent) -> None:
        """Plan an event, not before the present; a worker comes up on the node of its partition."""
        self._sequence += 1
        if isinstance(event, PartitionReady):
            event = self.nodes.placed(event)
        heappush(self._planned, (time_ns, PRIORITY[type(event)], self._sequence, event))

    def lose_node(self, time_ns: int, node: str, back_ns: int | None = None) -> None:
        """Plan the loss of a node with its partitions; at `back_ns`, unless it is None, their workers are up again."""
        self._sequence += 1
        heappush(self._planned, (time_ns, 0, self._sequence, NodeLost(node, back_ns)))

    def run(self, arrivals: Iterable[tuple[int, AnyEvent]] = (), drain_ns: float = math.inf) -> None:
        """Run until nothing is left to happen, or until `drain_ns` after the last of the `arrivals`.

        Arrivals are (time, event), ascending, drawn as time passes; an iterator that has none may have further ones
        after a later turn. A planned event comes before an arrival of the same instant.
        """
        upcoming = iter(arrivals)
        following = next(upcoming, None)
        send_ns = self._host.send_ns
        last_ns = 0
        self._wake_ns = self._scheduler.next_wakeup_ns()
        while True:
            due_ns = self._due_ns(None if following is None else following[0] + send_ns)
            if self._leaving and (due_ns is None or self._leaving[0][0] <= due_ns):
                self._leave()
                continue
            if due_ns is None or (following is None and due_ns > last_ns + drain_ns):
                return
            turn_ns = self._turn_ns = max(due_ns, self._idle_ns)
            read = 0
            while following is not None and following[0] + send_ns <= turn_ns:
                last_ns, event = following
                if self._takes_time and isinstance(event, RequestArrived):
                    event = msgspec.structs.replace(event, received_ns=turn_ns)
                self._arrived.append(event)
                read += 1
                following = next(upcoming, None)
            self._turn(read)
            if following is None:
                following = next(upcoming, None)

    def _due_ns(self, following_ns: int | None) -> int | None:
        """When the loop has something to do; `following_ns` is when the next request comes."""
        if self._arrived:
            return self._idle_ns
        due_ns = self._wake_ns
        if self._planned and (due_ns is None or self._planned[0][0] < due_ns):
            due_ns = self._planned[0][0]
        if following_ns is not None and (due_ns is None or following_ns < due_ns):
            due_ns = following_ns
        return due_ns

    def _leave(self) -> None:
        """Send the outputs of the next batch back that ends on a node: its link carries them in the order of ends."""
        ended_ns, _, batch, completed = heappop(self._leaving)
        if batch.batch in self._started_ns:
            back_ns = max(self._host.return_ns + self._stray_ns(), 0)
            self.at(self.nodes.answer(batch, ended_ns) + back_ns, completed)

    def _turn(self, read: int) -> None:
        """One iteration of the loop: what has come is handled at one instant, and what was decided is done."""
        turn_ns = self._turn_ns
        # Where the machine takes no time, no turn does, so none is late and none leaves arrivals to the next one.
        takes_time, scheduler = self._takes_time, self._scheduler
        self.now_ns = self._idle_ns = turn_ns + (self._intake_ns(read) if takes_time else 0)
        if takes_time and (delay := self._turns.begin(turn_ns)) is not None:
            self._handle(delay)
        while self._planned and self._planned[0][0] <= turn_ns:
            due_ns, _, _, event = heappop(self._planned)
            if isinstance(event, BatchCompleted):
                if self._started_ns.pop(event.batch, None) is None:
                    continue
            elif isinstance(event, NodeLost):
                self._lose(event)
                continue
            elif isinstance(event, PartitionReady) and not self._is_wanted(event.partition):
                continue
            if self._report is not None:
                event = self._report(due_ns, event)
            self._handle(event)
        arrived = self._arrived
        while arrived:
            event = arrived.popleft()
            is_last = takes_time and isinstance(event, RequestArrived) and is_spent(event, self.now_ns, self._idle_ns)
            self._handle(event)
            self._idle_ns += self._host.handle_ns
            if is_last:
                break
        self._wake_ns = scheduler.next_wakeup_ns()
        if self._wake_ns is not None and self._wake_ns <= self.now_ns:
            decisions = scheduler.handle_wakeup(self.now_ns)
            self._observe(self.now_ns, None, decisions)
            self._apply(decisions)
            self._wake_ns = scheduler.next_wakeup_ns()
        if self._answers:
            self._answer()
        if takes_time:
            self._turns.end(self._idle_ns, len(arrived))

    def _intake_ns(self, arrivals: int) -> int:
        """The time that the loop takes to read the events that have come."""
        host = self._host
        ended = sum(
            time_ns <= self._turn_ns and type(event) is BatchCompleted for time_ns, _, _, event in self._planned
        )
        return arrivals * host.receive_ns + ended * host.complete_ns

    def _answer(self) -> None:
        """Write the answers, which the loop does once everything else of the turn is done."""
        assert self._answered is not None
        host = self._host
        self._idle_ns += host.answers_ns
        for request in self._answers:
            self._idle_ns += host.answer_ns
            self._answered(request, self._idle_ns + host.deliver_ns)
        self._answers.clear()

    def _handle(self, event: AnyEvent) -> None:
        decisions = self._scheduler.handle(event, self.now_ns)
        self._observe(self.now_ns, event, decisions)
        if self._has_nodes:
            self._note(event)
        if isinstance(event, PartitionResized):
            self._replace_worker(event)
        elif isinstance(event, PartitionLost):
            self._forget_orders(event.partition)
            if (again_ns := self._workers.restart_ns(event.partition, self.now_ns)) is not None:
                self._come_up(event.partition, again_ns)
        if decisions:
            self._apply(decisions)
        if isinstance(event, PartitionLost) and not event.is_node_lost:
            self._lose_worker(event)

    def _is_wanted(self, name: str) -> bool:
        """True of a slot unless it is to have no worker after all; and of every other partition."""
        return not self._workers.is_slot(name) or self._workers.is_due(name, self._turn_ns)

    def _come_up(self, name: str, at_ns: int) -> None:
        self.at(at_ns, PartitionReady(name, dict(self._tables.get(name, {}))))

    def _note(self, event: AnyEvent) -> None:
        """Keep what the nodes have to know of requests and workers."""
        if isinstance(event, RequestArrived):
            self.nodes.arrived(event.request, event.pipeline)
        elif isinstance(event, PartitionReady):
            self._came_up[event.partition] = event

    def _lose(self, loss: NodeLost) -> None:
        """Report all partitions of a node that were up as lost, and then their batches."""
        reason = f"node {loss.node}: no answer"
        names = [name for name in self.nodes.partitions_of(loss.node) if name in self._came_up]
        self.nodes.lost(loss.node)
        for name in names:
            self._handle(PartitionLost(name, reason, is_node_lost=True))
            self._free_ns.pop(name, None)
            self._known_ns.pop(name, None)
            came_up = self._came_up.pop(name)
            if loss.back_ns is not None and not self._workers.is_slot(name):
                self.at(loss.back_ns, came_up)
        for batch in [batch for batch, (name, *_) in self._started_ns.items() if name in names]:
            del self._started_ns[batch]
            self._handle(BatchFailed(batch, FailureCause.WORKER_LOST, reason))

    def _lose_worker(self, loss: PartitionLost) -> None:
        """Report the batches of a lost worker as failed."""
        self._free_ns.pop(loss.partition, None)
        self._known_ns.pop(loss.partition, None)
        for batch in [batch for batch, (name, *_) in self._started_ns.items() if name == loss.partition]:
            del self._started_ns[batch]
            self.at(self.now_ns, BatchFailed(batch, FailureCause.WORKER_LOST, loss.reason))

    def _forget_orders(self, name: str) -> None:
        """A worker is gone: what it was to load or to unload is not answered."""
        self._orders_end_ns.pop(name, None)
        self._planned = [
            item
            for item in self._planned
            if not (isinstance(item[3], ModelLoaded | ModelUnloaded) and item[3].partition == name)
        ]
        heapify(self._planned)

    def _replace_worker(self, event: PartitionResized) -> None:
        """Let a new worker run what is sent from now on; the one before ends what it has beside it."""
        name = event.partition
        self._free_ns.pop(name, None)
        self._known_ns.pop(name, None)
        self._tables[name] = {**self._tables.get(name, {}), **event.tables}
        for batch, (partition, started_ns, free_ns, before_ns) in list(self._started_ns.items()):
            if partition == name:
                self._started_ns[batch] = (f"{name} before", started_ns, free_ns, before_ns)

    def _apply(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                self._start(decision)
            elif isinstance(decision, Settlement):
                if self._has_nodes:
                    self.nodes.settled(decision.request)
                if self._answered is not None:
                    self._answers.append(decision.request)
                    self._idle_ns += self._host.handle_ns
            elif isinstance(decision, CombineOutputs):
                member = decision.member
                confidences = self._service.combined_confidences(decision)
                self.at(self._turn_ns, OutputsCombined(member.request, member.stage, confidences))
            elif isinstance(decision, LookUpCache):
                self.at(self._turn_ns, CacheMiss(decision.member.request, decision.member.stage))
            elif isinstance(decision, RevokeBatch):
                self._revoke(decision.batch)
            else:
                self._arrange(decision)

    def _arrange(self, decision: AnyDecision) -> None:
        """Carry out an order about plans, partitions or their models."""
        if isinstance(decision, BuildPlan):
            plan = self._build_plan(self._scheduler.spec, decision.observed) if self._build_plan else None
            self.at(self._turn_ns, PlanBuilt(decision.build, plan))
        elif isinstance(decision, JudgeSteps):
            self.at(self._turn_ns, StepsJudged(decision.judgement, self._judge(self._scheduler.spec, decision)))
        elif isinstance(decision, ResizePartition):
            self.at(self._turn_ns, self._resize(decision))
        elif isinstance(decision, SetPartitions):
            lost, coming = self._workers.follow(decision, self._turn_ns)
            for name in lost:
                self.at(self._turn_ns, PartitionLost(name, "given up: fewer are wanted"))
            for at_ns, name in coming:
                self._come_up(name, at_ns)
        elif isinstance(decision, LoadModel):
            table = self._tables[decision.partition][decision.model]
            loaded_ns = self._after_orders_ns(decision.partition) + self._load_ns(decision)
            self._orders_end_ns[decision.partition] = loaded_ns
            self.at(loaded_ns, ModelLoaded(decision.partition, decision.model, table))
        elif isinstance(decision, UnloadModel):
            unloaded_ns = max(self._after_orders_ns(decision.partition), self._free_ns.get(decision.partition, 0))
            self._orders_end_ns[decision.partition] = unloaded_ns
            self.at(unloaded_ns, ModelUnloaded(decision.partition, decision.model))

    def _after_orders_ns(self, partition: str) -> int:
        """When a partition has done what it was ordered to load and to unload."""
        return max(self._turn_ns, self._orders_end_ns.get(partition, 0))

    def _start(self, batch: DispatchBatch) -> None:
        host = self._host
        self._idle_ns += host.dispatch_ns + batch.rows * host.dispatch_row_ns
        free_ns = self._free_ns.get(batch.partition, -host.between_ns)
        there_ns = self._idle_ns + max(host.hand_off_ns + self._stray_ns(), 0)
        is_remote = self._has_nodes and self.nodes.is_remote(batch.partition)
        if is_remote:
            there_ns = self.nodes.send(batch, there_ns)
        started_ns = max(there_ns, free_ns + host.between_ns)
        ended_ns = started_ns + self._service.batch_ns(batch)
        self._free_ns[batch.partition] = ended_ns
        completed = BatchCompleted(batch.batch, started_ns, ended_ns, self._service.batch_confidences(batch))
        if is_remote:
            self._started_ns[batch.batch] = (batch.partition, started_ns, free_ns, 0)
            self._sequence += 1
            heappush(self._leaving, (ended_ns, self._sequence, batch, completed))
            return
        known_ns = ended_ns + max(host.return_ns + self._stray_ns(), 0)
        before_ns = self._known_ns.get(batch.partition, 0)
        self._started_ns[batch.batch] = (batch.partition, started_ns, free_ns, before_ns)
        # A worker reports one batch after the other.
        known_ns = self._known_ns[batch.partition] = max(known_ns, before_ns)
        self.at(known_ns, completed)

    def _revoke(self, batch: int) -> None:
        """Take a batch back that has not started: it is the last of its partition, since a worker holds two at most."""
        partition, started_ns, free_ns, before_ns = self._started_ns[batch]
        if started_ns > self.now_ns:
            del self._started_ns[batch]
            self._free_ns[partition], self._known_ns[partition] = free_ns, before_ns
            self.at(self._turn_ns, BatchRevoked(batch))
