"""The scheduler: events in, decisions out. The same object runs in the live gateway and in the simulator."""

from collections.abc import Callable
from typing import Any

from sluice.batcher.dispatch.copies import give_up, is_superseded, live_copies, supersede
from sluice.batcher.dispatch.dispatcher import Dispatcher, leave_batch
from sluice.batcher.dispatch.retries import Failures
from sluice.batcher.dispatch.timeouts import REASONS, TimeoutCause
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.speed import observe_batch, observe_hand_off
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    EvictRequest,
    FailRequest,
    LookUpCache,
    Member,
    RejectRequest,
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
    DrainStarted,
    LoopDelayed,
    OutputsCombined,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.planner_protocol import Planner
from sluice.batcher.places.places import Offer
from sluice.batcher.prediction.pipeline_times import predict
from sluice.batcher.queues.priority_queue import EntryRefusedError
from sluice.batcher.queues.progress import observe_share, rows_for
from sluice.batcher.queues.response_order import FinishedEntries, one_by_one
from sluice.batcher.scheduler.admission import Admission
from sluice.batcher.scheduler.cut_offs import CutOffs, absent, may_join, present
from sluice.batcher.scheduler.memory_shares import MemoryShares
from sluice.batcher.scheduler.pipelines import PipelineRegistry
from sluice.batcher.scheduler.replanner import NoReplanner
from sluice.batcher.scheduler.unserved import hopeless_entries
from sluice.batcher.state import Entry, Request, StageRun, StageState

# Enum members are found by a fallback for attributes, which takes as long as ten plain look-ups (Python 3.11).
COMPLETED, COMPLETED_LATE = Outcome.COMPLETED, Outcome.COMPLETED_LATE


class Scheduler:
    """A state machine without I/O: time is passed in, as integer nanoseconds that never go back.

    A driver calls `handle` for every event of an instant, in the order of `events.PRIORITY`, and then
    `handle_wakeup` when `next_wakeup_ns` is due. Batches are formed only there, so that requests of one instant share
    a batch. The driver carries out the decisions in order. Every request gets exactly one settling decision.
    """

    def __init__(self, spec: SchedulerSpec, planner: Planner | None = None) -> None:
        self._limits = spec.limits
        self.requests: dict[int, Request] = {}
        self.dispatcher = Dispatcher(spec, Fleet(spec), planner, self._evict, self._progress, self._fail)
        self._places = self.dispatcher.places
        self._timeouts = self.dispatcher.timeouts
        self._instances = self.dispatcher.instances
        self._learners = self.dispatcher.fleet.learners
        self.memory = MemoryShares(spec.limits.memory_bytes)
        self.served = PipelineRegistry(spec, self.dispatcher, self.memory, planned=planner is not None)
        self.pipelines = self.served.pipelines
        self._retiring = self.served.retiring
        self._retired = self.served.residency.retired
        self._replanner = self.served.replanner
        self._residency = self.served.residency
        self._loader = self.served.loader
        self._followed = self._loader.followed
        self.scaler = self.served.scaler
        is_planned = not isinstance(self._replanner, NoReplanner)
        self._plans = self._loader.enabled or is_planned or self.scaler.enabled
        self.admission = Admission(
            spec.limits, self.memory, self.dispatcher.fleet, self._places, self._loader, self.scaler
        )
        # Work of the driver itself: a request that is settled meanwhile is no longer in `requests`.
        self._combining: dict[tuple[int, int], Request] = {}
        self._cut_offs = CutOffs()
        failures = Failures(self.dispatcher, self._fail, self._run_ended)
        self._handlers: dict[type[Any], Callable[[Any, int, list[AnyDecision]], None]] = {
            RequestArrived: self._arrived,
            LoopDelayed: self._loop_delayed,
            RequestCancelled: self._cancelled,
            BatchCompleted: self._completed,
            BatchFailed: failures.failed,
            BatchRevoked: failures.revoked,
            BatchSuspended: self._suspended,
            OutputsCombined: self._combined,
            CombinationFailed: self._combination_failed,
            CacheHit: self._combined,
            CacheMiss: self._combined,
            DrainStarted: self._drain_started,
            **self.served.handlers,
        }

    @property
    def spec(self) -> SchedulerSpec:
        """The pipelines and models that are served now, and the partitions."""
        return self.served.spec

    def handle(self, event: AnyEvent, now_ns: int) -> list[AnyDecision]:
        """Handle one event. O(log queue + partitions of the model)."""
        decisions: list[AnyDecision] = []
        self._handlers[type(event)](event, now_ns, decisions)
        if self._retiring or self._retired:
            self.served.reap(now_ns, decisions)
        return decisions

    def next_wakeup_ns(self) -> int | None:
        """When `handle_wakeup` is due; None until the next event."""
        wake_ns = self.dispatcher.wakeups.next_ns
        assign_ns = self._instances.wake_ns
        if assign_ns is not None and (wake_ns is None or assign_ns < wake_ns):
            wake_ns = assign_ns
        timeouts = self._timeouts
        if timeouts.planned and (due_ns := timeouts.next_ns()) is not None and (wake_ns is None or due_ns < wake_ns):
            wake_ns = due_ns
        if (cut_ns := self._cut_offs.next_ns) is not None and (wake_ns is None or cut_ns < wake_ns):
            wake_ns = cut_ns
        if self._plans:
            for planned_ns in (
                self._replanner.wake_ns,
                self._residency.wake_ns,
                self._loader.wake_ns,
                self.scaler.wake_ns,
            ):
                if planned_ns is not None and (wake_ns is None or planned_ns < wake_ns):
                    wake_ns = planned_ns
        return wake_ns

    def handle_wakeup(self, now_ns: int) -> list[AnyDecision]:
        """Evict entries that time out, then form batches; `next_wakeup_ns` is later than `now_ns` afterwards."""
        decisions: list[AnyDecision] = []
        dispatcher = self.dispatcher
        if self._timeouts.planned:
            for entry, cause in self._timeouts.due(now_ns):
                if cause is TimeoutCause.DELAYED:
                    dispatcher.mark_changed(entry.queue_key)
                else:
                    self._evict(entry.request, decisions, reason=REASONS[cause])
        self._cut_off_late(now_ns, decisions)
        self._review(now_ns, decisions)
        if self._residency.due_ns is not None and now_ns >= self._residency.due_ns:
            self._residency.advance(now_ns, decisions)
        loader, stranded = self._loader, dispatcher.fleet.stranded
        if stranded or loader.due(now_ns):
            loader.run_due(now_ns, decisions)
            self._instances.changed(now_ns)
        if self._instances.enabled:
            self._begin_due(now_ns, decisions)
            self._instances.assign(loader, now_ns)
            self._residency.issue(decisions)
        dispatcher.form(now_ns, decisions)
        if stranded:
            entries, again_ns = hopeless_entries(dispatcher.fleet, loader, self.scaler, now_ns)
            if again_ns is not None:
                dispatcher.check_by(again_ns)
            for entry, reason in entries:
                if not entry.request.settled:
                    self._fail(entry.request, Outcome.FAILED_UNAVAILABLE, reason, decisions)
        if self._retiring or self._retired:
            self.served.reap(now_ns, decisions)
        return decisions

    def _begin_due(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Let those wait for partitions that were sent ahead of their time and may begin now."""
        for entry in self._instances.due(now_ns):
            try:
                self.dispatcher.begin(entry, now_ns)
            except EntryRefusedError as refused:
                self._evict(entry.request, decisions, refused.outcome, str(refused))

    def _review(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Look at the numbers of partitions, and at the plan, as far as it is time."""
        if now_ns >= self.scaler.next_ns:
            self.scaler.review(now_ns, decisions)
        if now_ns >= self._replanner.next_ns and (order := self._replanner.review(now_ns)) is not None:
            decisions.append(order)

    def queue_depths(self) -> dict[str, int]:
        """Requests waiting, by model key."""
        return self.dispatcher.queue_depths()

    def queued(self, model: str) -> tuple[int, int]:
        """The requests and the rows that wait for a model; none for one that is not known."""
        return self.dispatcher.queued(model)

    # -- requests

    def _arrived(self, event: RequestArrived, now_ns: int, decisions: list[AnyDecision]) -> None:
        assert event.request not in self.requests, f"request {event.request} arrived twice"
        try:
            pipeline = self.pipelines[event.pipeline]
        except KeyError:
            reason = f"{event.pipeline} is not served any more"
            decisions.append(RejectRequest(event.request, Outcome.REJECTED_UNAVAILABLE, reason))
            return
        rows = event.rows
        pipeline.arrived_rows += rows
        if pipeline.changes != pipeline.predicted_changes:
            predict(pipeline, self._limits.hand_off_ns)
        places = self.admission.judge(event, pipeline, now_ns)
        if not isinstance(places, Offer):
            decisions.append(places)
            if places.outcome is Outcome.REJECTED_UNAVAILABLE:
                self._replanner.refused(event.pipeline)
            return
        request = self.requests[event.request] = Request(event, pipeline)
        if event.memory_bytes:
            self.memory.take(pipeline.number, event.memory_bytes)
        pipeline.outstanding += 1
        self._places.give(request, places)
        try:
            if pipeline.single:
                request.entries.append(self.dispatcher.enqueue(request, pipeline.stages[0], None, now_ns))
            else:
                request.missing = list(pipeline.missing)
                request.runs = [None if stage.waits_for else StageRun(None, rows) for stage in pipeline.stages]
                for combiner in pipeline.partial:
                    self._cut_offs.plan(request, combiner)
                for root in pipeline.roots:
                    self._enter(request, root, None, now_ns, decisions)
        except EntryRefusedError as refused:
            self._settle(request, decisions)
            backlog_ns = self.admission.backlog_ns(pipeline)
            decisions.append(RejectRequest(event.request, refused.outcome, str(refused), backlog_ns))

    def _loop_delayed(self, event: LoopDelayed, now_ns: int, decisions: list[AnyDecision]) -> None:
        self.admission.loop_delay.delayed(event, now_ns)

    def _cancelled(self, event: RequestCancelled, now_ns: int, decisions: list[AnyDecision]) -> None:
        request = self.requests.get(event.request)
        if request is not None:
            decisions.append(CancelRequest(request.identity, Outcome.CANCELLED_CLIENT))
            self._settle(request, decisions)

    def _evict(
        self,
        request: Request,
        decisions: list[AnyDecision],
        outcome: Outcome = Outcome.EVICTED_DEADLINE,
        reason: str = REASONS[TimeoutCause.LATE],
    ) -> None:
        decisions.append(EvictRequest(request.identity, outcome, reason, self.admission.backlog_ns(request.pipeline)))
        self._settle(request, decisions)

    def _fail(self, request: Request, outcome: Outcome, reason: str, decisions: list[AnyDecision]) -> None:
        decisions.append(FailRequest(request.identity, outcome, reason))
        self._settle(request, decisions)

    def _complete(self, request: Request, now_ns: int, decisions: list[AnyDecision]) -> None:
        identity, pipeline = request.identity, request.pipeline
        outcome = COMPLETED if now_ns <= request.deadline_ns else COMPLETED_LATE
        decisions.append(CompleteRequest(identity, outcome))
        # No entry waits or runs any more but superseded ones, so there is less to do than in `_settle`.
        request.settled = True
        del self.requests[identity]
        pipeline.outstanding -= 1
        request.entries.clear()  # they refer to the request: this breaks the cycle for the garbage collector
        if request.arrival.memory_bytes and not request.running:
            self.memory.give_back(pipeline.number, request.arrival.memory_bytes)

    def _settle(self, request: Request, decisions: list[AnyDecision]) -> None:
        """Release everything that a settled request holds, and withdraw its work that has not started."""
        request.settled = True
        del self.requests[request.identity]
        request.pipeline.outstanding -= 1
        if self._followed:
            self._loader.left(request)
        for stage in range(request.pipeline.stage_count):
            self._places.release(request, stage)
            request.running += stage not in request.given_up and (request.identity, stage) in self._combining
        for entry in [copy for original in request.entries for copy in live_copies(original)]:
            if entry.queued or entry.retry_group is not None:
                self.dispatcher.withdraw(entry)
            elif entry.batch is not None:
                request.running += 1
                self.dispatcher.drop_member(entry, entry.batch, decisions)
            else:
                request.running += self.dispatcher.holds_answer(entry)
        request.entries.clear()
        if not request.running:
            self.memory.give_back(request.pipeline.number, request.arrival.memory_bytes)

    def _ended(self, request: Request) -> bool:
        """Record that one running piece of a request ended; True if the request was settled meanwhile."""
        if request.settled:
            self._end_piece(request)
        return request.settled

    def _dropped(self, request: Request, stage: int) -> bool:
        """Record that the driver has done its part of a stage; True if that is not wanted any more."""
        if stage not in request.given_up:
            return self._ended(request)
        self._end_piece(request)
        return True

    def _run_ended(self, entry: Entry) -> bool:
        """Record that the batch of an entry ended; True if its answer is not wanted any more."""
        if not is_superseded(entry):
            return self._ended(entry.request)
        self._end_piece(entry.request)
        return True

    def _end_piece(self, request: Request) -> None:
        request.running -= 1
        if request.settled and not request.running:
            self.memory.give_back(request.pipeline.number, request.arrival.memory_bytes)

    # -- progress

    def _stage_done(self, request: Request, stage: StageState, now_ns: int, decisions: list[AnyDecision]) -> None:
        request.open_stages -= 1
        if request.pipeline.partial and (run := request.runs[stage.index]) is not None:
            run.is_done = True
        for index in stage.dependents:
            request.missing[index] -= 1
            if index in request.given_up:
                continue
            if not request.missing[index]:
                self._advance(request, request.pipeline.stages[index], now_ns, decisions)
            elif index in request.overdue_joins:
                self._cut_off(request, request.pipeline.stages[index], now_ns, decisions)
        if not request.open_stages and not request.settled:
            self._places.completed(request, now_ns)
            if self._followed:
                self._loader.left(request)
            self._complete(request, now_ns, decisions)

    def _cut_off_late(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Have the combiners that can wait no longer join what is there."""
        for request, combiner in self._cut_offs.due(now_ns):
            if request.missing[combiner.index]:
                try:
                    self._cut_off(request, combiner, now_ns, decisions)
                except EntryRefusedError as refused:
                    self._evict(request, decisions, refused.outcome, str(refused))

    def _cut_off(self, request: Request, combiner: StageState, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Have a combiner join the members that are there; if it cannot yet, as soon as it can."""
        if not may_join(request, combiner):
            request.overdue_joins |= {combiner.index}
            return
        stages = absent(request, combiner)
        request.overdue_joins -= {combiner.index}
        request.given_up |= stages
        request.open_stages -= len(stages)
        request.missing[combiner.index] = 0
        for index in sorted(stages):
            self._places.release(request, index)
            request.running += (request.identity, index) in self._combining
        for entry in [each for each in request.entries if each.stage in stages]:
            for copy in give_up(entry):
                if copy.queued or copy.retry_group is not None:
                    self.dispatcher.withdraw(copy)
                elif copy.batch is not None:
                    request.running += 1
                    self.dispatcher.drop_member(copy, copy.batch, decisions)
        self._advance(request, combiner, now_ns, decisions)

    def _advance(self, request: Request, stage: StageState, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Run a stage whose sources are settled for its rows, or skip it if there are none."""
        run = rows_for(request, stage)
        request.runs[stage.index] = run
        observe_share(stage, run, request)
        if not run.rows:
            self._places.release(request, stage.index)
            if self._followed:
                self._loader.skipped(request, stage, now_ns)
            self._stage_done(request, stage, now_ns, decisions)
        elif stage.model is None:
            self._combining[request.identity, stage.index] = request
            missing: tuple[int, ...] = ()
            if stage.config.partial:
                there = present(request, stage)
                missing = tuple([each for each in stage.config.sources if each not in there])
            member = Member(request.identity, stage.index, run.rows, run.row_index)
            decisions.append(CombineOutputs(member, missing))
        else:
            if stage.config.when is not None:
                self._places.settle_rows(request, stage.index, run.rows, now_ns)
            if self._followed:
                self._loader.reached(request, stage, now_ns)
            self._enter(request, stage, run, now_ns, decisions)

    def _enter(
        self,
        request: Request,
        stage: StageState,
        run: StageRun | None,
        now_ns: int,
        decisions: list[AnyDecision],
        is_cache_miss: bool = False,
    ) -> None:
        """Queue a stage; if the stage uses the response cache, look it up there first unless `is_cache_miss`."""
        if stage.config.uses_cache and not is_cache_miss:
            run = request.runs[stage.index]
            assert run is not None, "a stage whose sources are settled has its record"
            self._combining[request.identity, stage.index] = request
            decisions.append(LookUpCache(Member(request.identity, stage.index, run.rows, run.row_index)))
            return
        request.entries.append(self.dispatcher.enqueue(request, stage, run, now_ns))

    def _combined(
        self, event: OutputsCombined | CacheHit | CacheMiss, now_ns: int, decisions: list[AnyDecision]
    ) -> None:
        request = self._combining.pop((event.request, event.stage))
        if self._dropped(request, event.stage):
            return
        stage, run = request.pipeline.stages[event.stage], request.runs[event.stage]
        assert run is not None, "a stage that the driver was asked for has its record"
        try:
            if isinstance(event, CacheMiss):
                self._enter(request, stage, run, now_ns, decisions, is_cache_miss=True)
                return
            if isinstance(event, OutputsCombined):
                run.confidences = event.confidences
            run.batch_key = event.batch_key
            self._places.release(request, stage.index)
            self._stage_done(request, stage, now_ns, decisions)
        except EntryRefusedError as refused:
            self._evict(request, decisions, refused.outcome, str(refused))

    def _combination_failed(self, event: CombinationFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        request = self._combining.pop((event.request, event.stage))
        if not self._dropped(request, event.stage):
            self._fail(request, Outcome.FAILED_BACKEND, event.message, decisions)

    # -- batches

    def _completed(self, event: BatchCompleted, now_ns: int, decisions: list[AnyDecision]) -> None:
        if event.failures:
            self._fail_members(event, decisions)
        batch = self.dispatcher.end(event.batch, now_ns)
        partition = batch.partition
        if not batch.is_suspended:
            observe_hand_off(partition, batch.dispatched_ns, event.started_ns, event.ended_ns, now_ns, batch.way_ns)
        model = self.dispatcher.models[batch.queue_key[0]]
        took_ns = event.ended_ns - event.started_ns
        observe_batch(model, batch.kind, batch.rows, took_ns)
        if self.dispatcher.competition.learns:
            self.dispatcher.competition.ran(batch, took_ns)
        if self._learners and (learner := self._learners.get(batch.queue_key[0])) is not None:
            learner.observe(partition.name, batch.rows, took_ns)
        if model.config.sequences is not None:
            self.dispatcher.ran(batch.entries, now_ns)
        queue = self.dispatcher.fleet.queues.find(batch.queue_key)
        order = None if queue is None else queue.response_order
        if order is None and not batch.copied:
            self._progress((batch.entries, event, partition), now_ns, decisions)
            batch.entries.clear()
            return
        for entry in batch.entries:
            leave_batch(entry)
        finished = one_by_one(batch, event)
        if batch.copied:
            finished = [done for done in finished if self._is_first(done[0][0], decisions)]
        for done in finished if order is None else order.completed(finished):
            self._progress(done, now_ns, decisions)

    def _fail_members(self, event: BatchCompleted, decisions: list[AnyDecision]) -> None:
        """Fail the requests that the model gave an error; the others of the batch have their answers."""
        entries = self.dispatcher.batches[event.batch].entries
        for position, reason in event.failures:
            entry = entries[position]
            if not entry.request.settled and not is_superseded(entry):
                self._fail(entry.request, Outcome.FAILED_BACKEND, reason, decisions)

    def _suspended(self, event: BatchSuspended, now_ns: int, decisions: list[AnyDecision]) -> None:
        self.dispatcher.suspend(event.batch, now_ns)

    def _is_first(self, entry: Entry, decisions: list[AnyDecision]) -> bool:
        """Drop the other copies of an entry that has run; False if it is itself superseded."""
        if is_superseded(entry):
            self._run_ended(entry)
            return False
        request = entry.request
        for copy in () if request.settled else supersede(entry):
            if copy.retry_group is not None:
                self.dispatcher.withdraw(copy)
            elif copy.batch is not None:
                request.running += 1
                self.dispatcher.drop_member(copy, copy.batch, decisions)
        return True

    def _progress(self, done: FinishedEntries, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Continue or complete the requests of entries that have run."""
        entries, event, partition = done
        last = 0
        for entry in entries:
            last += entry.rows
            request = entry.request
            if request.given_up and entry.stage in request.given_up:
                continue
            if request.settled:
                self._ended(request)
            elif (pipeline := request.pipeline).single:
                if pipeline.drift or now_ns > request.deadline_ns:
                    self._places.completed(request, now_ns)
                self._complete(request, now_ns, decisions)
            else:
                run = request.runs[entry.stage]
                assert run is not None, "a stage that ran has its record"
                if event.confidences:
                    run.confidences = tuple(values[last - entry.rows : last] for values in event.confidences)
                run.batch_key = event.batch_key
                run.kept_on = partition.node if partition.keeps_outputs else None
                leave_batch(entry)
                request.ran_on = partition
                try:
                    self._stage_done(request, pipeline.stages[entry.stage], now_ns, decisions)
                except EntryRefusedError as refused:
                    self._evict(request, decisions, refused.outcome, str(refused))

    def _drain_started(self, event: DrainStarted, now_ns: int, decisions: list[AnyDecision]) -> None:
        self.admission.draining = True
