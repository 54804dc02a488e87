"""The scheduler: events in, decisions out. The same object runs in the live gateway and in the simulator."""

from collections.abc import Callable
from typing import Any

from batcher.admission import Admission
from batcher.config import SchedulerSpec
from batcher.decisions import (
    AnyDecision,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    EvictRequest,
    FailRequest,
    Member,
    RevokeBatch,
)
from batcher.dispatch import Dispatcher
from batcher.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    CombinationFailed,
    DrainStarted,
    FailureCause,
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
from batcher.evictions import Evictions
from batcher.invariants import check_invariants
from batcher.lifecycle import Entry, Request, StageRun
from batcher.outcome import Outcome
from batcher.plan import PipelineState, StageState
from batcher.progress import observe_share, rows_for
from batcher.ranking import Planner
from batcher.replan import Replanner
from batcher.residency import Residency


class Scheduler:
    """A state machine without I/O: time is passed in, as integer nanoseconds that never go back.

    A driver calls `handle` for every event of an instant, in the order of `batcher.events.PRIORITY`, and then
    `handle_wakeup` when `next_wakeup_ns` is due: batches are formed only there, so that requests of one instant meet in
    one batch. It carries out the decisions in order. Every request gets exactly one settling decision.
    """

    def __init__(self, spec: SchedulerSpec, planner: Planner | None = None) -> None:
        self.spec = spec
        self._limits = spec.limits
        self.dispatcher = Dispatcher(spec, planner, self._evict)
        self.pipelines = {
            config.name: PipelineState(number, config, self.dispatcher.models)
            for number, config in enumerate(spec.pipelines)
        }
        self.requests: dict[int, Request] = {}
        self._booked = self.dispatcher.booked
        self.admission = Admission(spec.limits, self._booked)
        fleet = self.dispatcher.fleet
        self._replanner = None if planner is None else Replanner(fleet, self.pipelines)
        self._residency = Residency(fleet, self._unloading)
        self._evictions = Evictions(fleet.models, spec.limits.hand_off_ns, self._booked)
        # A request that is settled while a combiner runs is no longer among `requests`.
        self._combining: dict[tuple[int, int], Request] = {}
        self._handlers: dict[type[Any], Callable[[Any, int, list[AnyDecision]], None]] = {
            RequestArrived: self._arrived,
            RequestCancelled: self._cancelled,
            BatchCompleted: self._completed,
            BatchFailed: self._failed,
            BatchRevoked: self._revoked,
            OutputsCombined: self._combined,
            CombinationFailed: self._combination_failed,
            PartitionReady: self._partition_ready,
            PartitionLost: self._partition_lost,
            ModelLoaded: self._model_loaded,
            ModelLoadFailed: self._model_load_failed,
            ModelUnloaded: self._model_unloaded,
            PlanBuilt: self._plan_built,
            DrainStarted: self._drain_started,
        }

    def handle(self, event: AnyEvent, now_ns: int) -> list[AnyDecision]:
        """Take in one event. O(log queue + partitions of the model)."""
        decisions: list[AnyDecision] = []
        self._handlers[type(event)](event, now_ns, decisions)
        return decisions

    def next_wakeup_ns(self) -> int | None:
        """When `handle_wakeup` is due; None when only an event can change anything."""
        wake_ns = self.dispatcher.wake_ns
        evictions = self._evictions.agenda
        if evictions and (wake_ns is None or evictions[0][0] < wake_ns):
            wake_ns = evictions[0][0]
        if self._replanner is not None:
            for planned_ns in (self._replanner.wake_ns, self._residency.wake_ns):
                if planned_ns is not None and (wake_ns is None or planned_ns < wake_ns):
                    wake_ns = planned_ns
        return wake_ns

    def handle_wakeup(self, now_ns: int) -> list[AnyDecision]:
        """Evict what cannot make it, then form batches; `next_wakeup_ns` is later than `now_ns` afterwards."""
        decisions: list[AnyDecision] = []
        dispatcher = self.dispatcher
        if self._evictions.agenda:
            for entry in self._evictions.due(now_ns):
                self._evict(entry.request, decisions)
        replanner = self._replanner
        if replanner is not None and now_ns >= replanner.next_ns and (order := replanner.review(now_ns)) is not None:
            decisions.append(order)
        if self._residency.due_ns is not None and now_ns >= self._residency.due_ns:
            self._residency.advance(now_ns, decisions)
        dispatcher.form(now_ns, decisions)
        if dispatcher.fleet.unserved:
            for entry in dispatcher.abandoned(now_ns):
                if not entry.request.settled:
                    reason = f"no partition holds model {entry.queue.model} any more"
                    self._fail(entry.request, Outcome.FAILED_UNAVAILABLE, reason, decisions)
        return decisions

    def queue_depths(self) -> dict[str, int]:
        """Requests waiting, by model key."""
        return self.dispatcher.queue_depths()

    def check(self) -> None:
        """Assert every invariant; O(everything), for tests."""
        check_invariants(self)

    # -- requests

    def _arrived(self, event: RequestArrived, now_ns: int, decisions: list[AnyDecision]) -> None:
        assert event.request not in self.requests, f"request {event.request} arrived twice"
        pipeline = self.pipelines[event.pipeline]
        pipeline.rate.rows += event.rows
        if pipeline.stale:
            pipeline.refresh(self._limits.hand_off_ns)
        rejection = self.admission.judge(event, pipeline, now_ns)
        if rejection is not None:
            decisions.append(rejection)
            if self._replanner is not None and rejection.outcome is Outcome.REJECTED_UNAVAILABLE:
                self._replanner.refused(event.pipeline)
            return
        request = Request(
            event.request,
            pipeline,
            event.rows,
            event.deadline_ns,
            event.batch_key,
            event.memory_bytes,
            pipeline.work,
            pipeline.all_stages,
            pipeline.stage_count,
            pipeline.evicts,
        )
        self.requests[event.request] = request
        self.admission.memory_bytes += event.memory_bytes
        pipeline.outstanding += 1
        rows = event.rows
        if pipeline.shared:
            pipeline.inflow.add(rows, now_ns)
        for pool, row_ns in pipeline.work.total:
            pool.backlog_ns += row_ns * rows
        if not pipeline.single:
            request.missing = list(pipeline.missing)
            request.runs = [None if stage.waits_for else StageRun(None, rows) for stage in pipeline.stages]
        for root in pipeline.roots:
            entry = self.dispatcher.enqueue(request, root, None, now_ns)
            if request.evicts:
                self._evictions.plan(entry, now_ns)

    def _cancelled(self, event: RequestCancelled, now_ns: int, decisions: list[AnyDecision]) -> None:
        request = self.requests.get(event.request)
        if request is not None:
            decisions.append(CancelRequest(request.identity, Outcome.CANCELLED_CLIENT))
            self._settle(request, decisions)

    def _evict(self, request: Request, decisions: list[AnyDecision]) -> None:
        reason = "the deadline is out of reach"
        backlog_ns = max((pool.backlog_ns for pool, _ in request.work.total), default=0)
        decisions.append(EvictRequest(request.identity, Outcome.EVICTED_DEADLINE, reason, backlog_ns))
        self._settle(request, decisions)

    def _fail(self, request: Request, outcome: Outcome, reason: str, decisions: list[AnyDecision]) -> None:
        decisions.append(FailRequest(request.identity, outcome, reason))
        self._settle(request, decisions)

    def _complete(self, request: Request, now_ns: int, decisions: list[AnyDecision]) -> None:
        outcome = Outcome.COMPLETED if now_ns <= request.deadline_ns else Outcome.COMPLETED_LATE
        decisions.append(CompleteRequest(request.identity, outcome))
        # Nothing of it waits or runs any more, so there is less to do than in `_settle`.
        request.settled = True
        del self.requests[request.identity]
        if self._booked is not None:
            self._booked.forget(request.identity)
        request.pipeline.outstanding -= 1
        request.entries.clear()  # they refer to the request: no cycle is left to the garbage collector
        self.admission.memory_bytes -= request.memory_bytes

    def _settle(self, request: Request, decisions: list[AnyDecision]) -> None:
        """The request has its outcome: give back all it holds and take back what has not started."""
        request.settled = True
        del self.requests[request.identity]
        request.pipeline.outstanding -= 1
        stage = 0
        while request.committed:
            request.uncommit(stage)
            stage += 1
        for entry in request.entries:
            if entry.queued or entry.group is not None:
                self.dispatcher.withdraw(entry)
            elif entry.batch is not None:
                batch = entry.batch
                batch.live -= 1
                if not batch.live and not batch.revoking and batch.partition.batches[0] is not batch:
                    batch.revoking = True
                    decisions.append(RevokeBatch(batch.identity))
        request.entries.clear()
        if self._booked is not None:
            self._booked.forget(request.identity)
        if not request.running:
            self.admission.memory_bytes -= request.memory_bytes

    def _ended(self, request: Request) -> bool:
        """One piece of a request's running work ended; whether the request was settled meanwhile."""
        request.running -= 1
        if request.settled and not request.running:
            self.admission.memory_bytes -= request.memory_bytes
        return request.settled

    # -- progress

    def _stage_done(self, request: Request, stage: StageState, now_ns: int, decisions: list[AnyDecision]) -> None:
        request.open_stages -= 1
        if self._booked is not None:
            self._booked.settled(request.identity, stage.index)
        for index in stage.dependents:
            request.missing[index] -= 1
            if not request.missing[index]:
                self._advance(request, request.pipeline.stages[index], now_ns, decisions)
        if not request.open_stages and not request.settled:
            self._complete(request, now_ns, decisions)

    def _advance(self, request: Request, stage: StageState, now_ns: int, decisions: list[AnyDecision]) -> None:
        """All that a stage waits for is settled: run it for its rows, or skip it when there are none."""
        run = rows_for(request, stage)
        request.runs[stage.index] = run
        observe_share(stage, run, request)
        if not run.rows:
            request.uncommit(stage.index)
            self._stage_done(request, stage, now_ns, decisions)
        elif stage.model is None:
            request.running += 1
            request.uncommit(stage.index)
            self._combining[request.identity, stage.index] = request
            decisions.append(CombineOutputs(Member(request.identity, stage.index, run.rows, run.row_index)))
        else:
            if stage.config.when is not None:
                request.settle_rows(stage.index, run.rows)
            entry = self.dispatcher.enqueue(request, stage, run, now_ns)
            if request.evicts:
                self._evictions.plan(entry, now_ns)

    def _combined(self, event: OutputsCombined, now_ns: int, decisions: list[AnyDecision]) -> None:
        request = self._combining.pop((event.request, event.stage))
        if self._ended(request):
            return
        run = request.runs[event.stage]
        assert run is not None, "a combiner that ran has its record"
        run.verdicts = event.verdicts
        run.batch_key = event.batch_key
        self._stage_done(request, request.pipeline.stages[event.stage], now_ns, decisions)

    def _combination_failed(self, event: CombinationFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        request = self._combining.pop((event.request, event.stage))
        if not self._ended(request):
            self._fail(request, Outcome.FAILED_BACKEND, event.message, decisions)

    # -- batches

    def _completed(self, event: BatchCompleted, now_ns: int, decisions: list[AnyDecision]) -> None:
        batch = self.dispatcher.end(event.batch, now_ns)
        partition = batch.partition
        partition.observe(batch.dispatched_ns, event.started_ns, event.ended_ns, now_ns)
        model = self.dispatcher.models[batch.queue.model]
        model.estimates[partition.kind].observe(batch.rows, event.ended_ns - event.started_ns)
        model.learned()
        if self._booked is not None:
            self._booked.observed(model, partition.kind, batch.rows)
        first = 0
        for entry in batch.entries:
            entry.batch = None
            last = first + entry.rows
            request = entry.request
            if not self._ended(request):
                if request.pipeline.single:
                    self._complete(request, now_ns, decisions)
                else:
                    run = request.runs[entry.stage]
                    assert run is not None, "a stage that ran has its record"
                    run.verdicts = tuple(values[first:last] for values in event.verdicts)
                    run.batch_key = event.batch_key
                    request.ran_on = partition
                    self._stage_done(request, request.pipeline.stages[entry.stage], now_ns, decisions)
            first = last

    def _failed(self, event: BatchFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Retry in halves: once elsewhere what a lost worker ran, and what failed until the row to blame is found."""
        batch = self.dispatcher.end(event.batch, now_ns)
        alive = self._detach(batch.entries)
        hard = [entry for entry in alive if entry.request.evicts]
        if event.cause is FailureCause.WORKER_LOST:
            alive = self._retried_once(alive, batch.suspect, event.message, decisions)
            if self._booked is not None and not batch.suspect:
                alive = self._booked.reopen(alive, now_ns)
        elif len(alive) == 1:
            outcome = Outcome.FAILED_BACKEND if event.cause is FailureCause.BACKEND else Outcome.FAILED_UNAVAILABLE
            self._fail(alive[0].request, outcome, event.message, decisions)
            return
        half = len(alive) // 2
        self.dispatcher.retry(batch.queue, alive[:half], now_ns)
        self.dispatcher.retry(batch.queue, alive[half:], now_ns)
        for entry in hard:
            self._evictions.plan(entry, now_ns)

    def _retried_once(
        self, alive: list[Entry], suspect: bool, message: str, decisions: list[AnyDecision]
    ) -> list[Entry]:
        """Those that may be tried again; the others are failed. A batch that had not started proves nothing."""
        if not suspect:
            return alive
        for entry in alive:
            if entry.lost_once and not entry.request.settled:
                reason = f"the worker was lost twice with this request: {message}"
                self._fail(entry.request, Outcome.FAILED_WORKER_LOST, reason, decisions)
            entry.lost_once = True
        return [entry for entry in alive if not entry.request.settled]

    def _revoked(self, event: BatchRevoked, now_ns: int, decisions: list[AnyDecision]) -> None:
        batch = self.dispatcher.end(event.batch, now_ns)
        self.dispatcher.retry(batch.queue, self._detach(batch.entries), now_ns)

    def _detach(self, entries: list[Entry]) -> list[Entry]:
        """Free entries from the batch that ended; those whose requests still want an answer."""
        alive = []
        for entry in entries:
            entry.batch = None
            if not self._ended(entry.request):
                alive.append(entry)
        return alive

    # -- partitions

    def _partition_ready(self, event: PartitionReady, now_ns: int, decisions: list[AnyDecision]) -> None:
        self.dispatcher.ready(event, now_ns)
        self._residency.advance(now_ns, decisions)
        self._holdings_changed()

    def _partition_lost(self, event: PartitionLost, now_ns: int, decisions: list[AnyDecision]) -> None:
        self._residency.lost(event.partition)
        self.dispatcher.lost(event.partition, now_ns)
        self._holdings_changed()

    def _model_loaded(self, event: ModelLoaded, now_ns: int, decisions: list[AnyDecision]) -> None:
        self._residency.loaded(event.partition, event.model, event.table, now_ns, decisions)
        self.dispatcher.look_at(event.partition, now_ns)
        self._holdings_changed()

    def _model_load_failed(self, event: ModelLoadFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        self._residency.failed(event.partition, event.model, now_ns, decisions)

    def _model_unloaded(self, event: ModelUnloaded, now_ns: int, decisions: list[AnyDecision]) -> None:
        self._residency.advance(now_ns, decisions)

    def _plan_built(self, event: PlanBuilt, now_ns: int, decisions: list[AnyDecision]) -> None:
        assert self._replanner is not None, "only a scheduler with a planner asks for plans"
        self._replanner.built(event.build, event.plan)
        if event.plan is not None and event.plan.residency:
            self._residency.aim(event.plan.residency, now_ns, decisions)

    def _unloading(self, partition: str, now_ns: int) -> None:
        self.dispatcher.look_at(partition, now_ns)
        if self._replanner is not None:
            self._replanner.stand_in()

    def _holdings_changed(self) -> None:
        if self._replanner is not None:
            self._replanner.changed()

    def _drain_started(self, event: DrainStarted, now_ns: int, decisions: list[AnyDecision]) -> None:
        self.admission.draining = True
