"""The live driver of the scheduler: events go in once a loop iteration, and decisions are carried out."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as PlanExecutor
from contextlib import suppress
from typing import Any, Protocol, cast, get_args

from sluice.batcher.drivers.loop_turns import LoopTurns, is_spent
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    JudgeSteps,
    LoadModel,
    LookUpCache,
    RejectRequest,
    RevokeBatch,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    PRIORITY,
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    DrainStarted,
    FailureCause,
    RequestArrived,
    RequestCancelled,
    ServingChanged,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.planner_protocol import BuildPlans
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.config.tracing import TRACE_REQUESTS
from sluice.gateway.executors.base import Executor
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.observability.traces.trace import BatchTrace, RecentTraces, Trace
from sluice.gateway.partitions.inventory import NO_DETAILS, Inventory, PartitionEvent, ProcessDetails
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import NO_PARAMETERS, RequestOptions
from sluice.gateway.runtime.batch_log import BatchLog
from sluice.gateway.runtime.local_stages import LocalStages
from sluice.gateway.runtime.plan_building import PlanBuilding, PlanFailure
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.errors import PartitionError, RejectedError, RequestError, WorkerGone
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S

logger = logging.getLogger(__name__)

MAX_ROUNDS = 1000
"""Rounds of events and wake-ups in one flush before other callbacks of the loop get their turn."""
MOST_WAITING = 2
"""Arrivals that may wait for their turn, in multiples of the requests that may be under way."""
_COMPLETED = Outcome.COMPLETED
_FROM_CACHE = "it was answered from the cache"
_CANCELLED = "the client cancelled the request"
_WITH_ANOTHER = "it was answered with an equal request that was under way"
_PARTITION_EVENTS = frozenset(get_args(PartitionEvent))


Observe = Callable[[int, AnyEvent | None, list[AnyDecision]], None]
"""Gets every step of the scheduler: the time, the event (None for a wake-up) and the decisions."""


class Timer(Protocol):
    """One alarm on the clock of the runtime."""

    def start(self, callback: Callable[[], None]) -> None:
        """Begin; `callback` is called when the alarm goes off."""
        ...

    def arm(self, due_ns: int | None) -> None:
        """Set the alarm, in place of an earlier setting; None turns it off."""
        ...

    def close(self) -> None:
        """Turn the alarm off for good."""
        ...


class Runtime:
    """Drives a scheduler on the running asyncio loop.

    Events of one loop iteration are handled together at one instant, so requests that arrive together share a batch.
    Arrivals are handled for as long as a turn may last. The rest follow after the other callbacks of the loop, and the
    scheduler hears of the delay. An arrival is refused here only where MOST_WAITING times as many wait as may be under
    way.

    Any error while a decision is carried out is reported to the scheduler as a failed batch or combination. When the
    scheduler itself fails, all open requests are answered with an error and `failed` is set; when `observe` raises
    OSError, it gets no more steps. `on_began` gets each request that is submitted, and `on_ended` each that has its
    outcome.

    Without `build_plan` there are no plans. They are built in `planning`, which is shut down with the runtime: a thread
    of its own unless given.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        clock: Callable[[], int],
        timer: Timer,
        metrics: ServerMetrics,
        inventory: Inventory,
        observe: Observe | None = None,
        trace_requests: int = TRACE_REQUESTS,
        build_plan: BuildPlans | None = None,
        planning: PlanExecutor | None = None,
        on_began: Callable[[Trace], None] | None = None,
        on_ended: Callable[[Trace], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._timer = timer
        self._meters = metrics.meters
        self._inventory = inventory
        self._observe = observe
        self._on_began = on_began
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, Submission] = {}
        self._held: dict[int, int] = {}  # the bytes of the open requests of which the scheduler does not know
        self._held_bytes = 0
        self._resumed: set[int] = set()  # requests that were held and whose arrivals may still wait for their turn
        self._runs = BatchLog(metrics.meters, lambda name: scheduler.dispatcher.fleet.partitions[name].price / NS_PER_S)
        self._runs.notes_traced = on_began is not None
        self._stages = {pipeline.name: pipeline.stages for pipeline in scheduler.spec.pipelines}
        self.traces = RecentTraces(trace_requests)
        self._plans = PlanBuilding(build_plan, planning, self._enqueue)
        self._memory = scheduler.memory
        self._next_request = 0
        self._last_arrived = 0
        # One queue for each priority: within an instant, completions are handled first and arrivals last.
        self._queues: tuple[deque[AnyEvent], ...] = tuple(deque() for _ in range(max(PRIORITY.values()) + 1))
        self._arrivals = self._queues[PRIORITY[RequestArrived]]
        self._flush_due = False
        self._most_waiting = MOST_WAITING * scheduler.spec.limits.queue_requests
        self._turns = LoopTurns()
        self._received_ns = 0  # the arrivals that are read in this turn had come by then; 0 before the first
        self._draining = False
        self._armed_ns: int | None = None
        self._now_ns = 0
        self._closed = False
        self._answered: list[tuple[Submission, Answer]] = []
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._idle = asyncio.Event()
        self.failed = asyncio.Event()
        self._local = LocalStages(self._open, executor, self._enqueue)
        self._apply: dict[type[AnyDecision], Callable[[Any], None]] = {
            DispatchBatch: self._dispatch,
            RevokeBatch: self._revoke,
            LookUpCache: self._local.look_up_cache,
            BuildPlan: lambda order: self._plans.begin(order, scheduler.spec),
            JudgeSteps: lambda order: self._plans.judge(order, scheduler.spec),
            LoadModel: executor.load,
            UnloadModel: executor.unload,
            CompleteRequest: self._complete,
            RejectRequest: self._refuse,
            EvictRequest: self._refuse,
            FailRequest: self._fail,
            CancelRequest: self._cancelled,
        }

    @property
    def in_flight(self) -> int:
        """Requests that have no outcome yet."""
        return len(self._open)

    @property
    def headrooms(self) -> Mapping[str, float]:
        """By pipeline, the factor by which all traffic could grow from the rates of a recent plan."""
        return self._plans.headrooms

    @property
    def plan_failures(self) -> Mapping[PlanFailure, int]:
        """The number of plans, or parts of them for a pipeline, that could not be built."""
        return self._plans.failures

    async def find_headrooms(self) -> Mapping[str, float]:
        """As `headrooms`, after those that are due now have been computed; waits for half a second at most."""
        return await self._plans.find_headrooms()

    def carry_out_with(self, kind: type[AnyDecision], carry_out: Callable[[Any], None]) -> None:
        """Have decisions of a kind carried out by `carry_out`, which does not wait."""
        self._apply[kind] = carry_out

    def watch_batches(self, watch: Callable[[BatchTrace], None] | None) -> None:
        """Have `watch` called with each batch that has completed; None: no longer."""
        self._runs.watch = watch

    def start(self) -> None:
        """Let the executor begin; requests may be submitted from now on."""
        self._timer.start(self._alarm)
        self._executor.start(self.report)
        self._flush_soon()  # the scheduler may have orders before the first event

    def submit(
        self,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        received_ns: int = 0,
        shared: BatchOutputs | None = None,
        trace: TraceContext = NO_TRACE,
    ) -> Submission:
        """Start a checked request; its tensors belong to the runtime until the future is done.

        `pipeline` is `name:version`, `client` as in `RequestArrived`, and `trace` is the trace that the client names.
        The size of the stages' outputs is added to `options.memory_bytes`. The request's time counts from `received_ns`
        (0: from the first `submit` since events were last handled: what is read before they are handled again had come
        by then). Its trace counts its time from when it may begin. Inputs that lie in shared memory are given as
        `shared`, too: workers read them there, and they are released when nothing needs them.
        Raises RejectedError once the runtime is closed, and RequestError when the tensors alone exceed the memory that
        a pipeline may have, or it is to begin later and its models cannot.
        """
        if self._closed:
            raise RejectedError("the server is stopping")
        self._check_start(pipeline, options)
        read_ns = self._received_ns or self._clock()
        received_ns = received_ns or read_ns
        if len(self._arrivals) >= self._most_waiting:
            reason = f"the server is overloaded: {self._most_waiting} requests wait for their turn"
            full = Answer(Outcome.REJECTED_QUEUE_FULL, reason, retry_after_s=1)
            return self._answer_at_once(pipeline, options, full, received_ns, trace)
        request = self._next_request = self._next_request + 1
        arrival = self._admitted(request, pipeline, inputs, options, client, received_ns, shared)
        begin_ns = max(received_ns, arrival.not_before_ns)
        submission = self._opened(arrival, options.id, begin_ns, trace, options.parameters)
        self._received_ns = read_ns
        self._enqueue(arrival)
        return submission

    def _check_start(self, pipeline: str, options: RequestOptions) -> None:
        """Raise RequestError if a request is to begin later, and its first models run whatever comes at once."""
        known = self._scheduler.pipelines.get(pipeline) if options.start_after_ns else None
        for stage in () if known is None else known.roots:
            if stage.model is not None and stage.model.config.instances is None:
                expected = f"a model with an instance policy, and {public_key(stage.model.config.key)} has none"
                raise RequestError(f"parameter 'start_after_ms': expected {expected}")

    def _admitted(
        self,
        request: int,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str,
        received_ns: int,
        shared: BatchOutputs | None,
    ) -> RequestArrived:
        """Give the tensors of a request to the executor; returns its arrival. Raises RequestError as `submit`."""
        input_bytes = options.memory_bytes
        memory_bytes = input_bytes + self._executor.admit(request, pipeline, inputs, options.rows, input_bytes, shared)
        if memory_bytes > self._memory.most_bytes:
            self._executor.discard(request)
            raise RequestError(
                f"the tensors of the request need {memory_bytes} bytes, but the limit for all requests of a pipeline "
                f"together is {self._memory.most_bytes} bytes"
            )
        return RequestArrived(
            request,
            pipeline,
            options.rows,
            received_ns + options.budget_ns,
            options.batch_key,
            memory_bytes,
            options.max_cost,
            options.priority,
            received_ns + options.start_after_ns + options.timeout_ns if options.timeout_ns else 0,
            client,
            received_ns,
            options.is_call,
            options.sequence,
            options.min_accuracy,
            received_ns + options.start_after_ns if options.start_after_ns else 0,
        )

    def hold(
        self, pipeline: str, options: RequestOptions, received_ns: int, trace: TraceContext = NO_TRACE
    ) -> Submission | None:
        """Open a request of which the scheduler hears only once it runs; None if too many, or too large ones, are held.

        It is to be ended by `answer_held` or `run_held`, unless it is cancelled or the runtime is closed before.
        """
        self._check_start(pipeline, options)
        if self._closed or len(self._held) >= self._scheduler.spec.limits.queue_requests:
            return None
        held_bytes = self._held_bytes + options.memory_bytes
        if held_bytes > self._memory.most_bytes:
            return None
        request = self._next_request = self._next_request + 1
        arrival = RequestArrived(request, pipeline, options.rows, received_ns + options.budget_ns)
        self._held[request] = options.memory_bytes
        self._held_bytes = held_bytes
        return self._opened(arrival, options.id, received_ns, trace, options.parameters)

    def answer_held(self, submission: Submission, outputs: Mapping[str, Tensor]) -> None:
        """Answer a request that was held with the cached outputs of another one."""
        if submission.request in self._held:
            self._now_ns = self._clock()
            in_time = self._now_ns <= submission.trace.arrival.deadline_ns
            outcome = Outcome.COMPLETED if in_time else Outcome.COMPLETED_LATE
            self._end_held(submission.request, Answer(outcome, _WITH_ANOTHER, outputs=outputs), counted=True)

    def run_held(
        self,
        submission: Submission,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str,
        shared: BatchOutputs | None,
    ) -> None:
        """Have the scheduler run a request that was held; as `submit`, but its errors are its answer."""
        request, trace = submission.request, submission.trace
        if request not in self._held:
            return
        try:
            arrival = self._admitted(request, trace.arrival.pipeline, inputs, options, client, trace.arrived_ns, shared)
        except RequestError as error:
            self._now_ns = self._clock()
            self._end_held(request, Answer(Outcome.REJECTED_MEMORY, str(error)))
            return
        self._held_bytes -= self._held.pop(request)
        self._resumed.add(request)
        trace.arrival = arrival
        trace.arrived_ns = max(trace.arrived_ns, arrival.not_before_ns)
        self._enqueue(arrival)

    def _end_held(self, request: int, answer: Answer, *, counted: bool = False) -> None:
        self._held_bytes -= self._held.pop(request)
        self._settle(request, answer, counted=counted)
        self._deliver()

    def answer_from_cache(
        self,
        pipeline: str,
        options: RequestOptions,
        outputs: Mapping[str, Tensor],
        now_ns: int,
        trace: TraceContext = NO_TRACE,
    ) -> Submission:
        """Answer a request that arrived at `now_ns` with cached outputs; the scheduler does not see it."""
        cached = Answer(Outcome.COMPLETED, _FROM_CACHE, outputs=outputs)
        return self._answer_at_once(pipeline, options, cached, now_ns, trace, counted=True)

    def _answer_at_once(
        self,
        pipeline: str,
        options: RequestOptions,
        answer: Answer,
        arrived_ns: int,
        trace: TraceContext,
        *,
        counted: bool = False,
    ) -> Submission:
        """Answer a request that the scheduler does not see."""
        request = self._next_request = self._next_request + 1
        arrival = RequestArrived(request, pipeline, options.rows, arrived_ns + options.budget_ns)
        submission = self._opened(arrival, options.id, arrived_ns, trace)
        self._now_ns = self._clock()
        self._settle(request, answer, counted=counted)
        self._deliver()
        return submission

    def submission(self, request: int) -> Submission | None:
        """The submission of a request that has no outcome yet."""
        return self._open.get(request)

    def is_in_batch(self, request: int) -> bool:
        """Return whether a request is in a batch that has not ended; O(requests in batches)."""
        return self._runs.has(request)

    def _opened(
        self,
        arrival: RequestArrived,
        client_id: str,
        arrived_ns: int,
        context: TraceContext,
        parameters: str = NO_PARAMETERS,
    ) -> Submission:
        pipeline = arrival.pipeline
        trace = Trace(client_id, arrival, arrived_ns, self._stages[pipeline])
        if context is not NO_TRACE:
            trace.context = context
        if self._on_began is not None:
            self._on_began(trace)
        submission = Submission(arrival.request, self._loop, trace, self._meters.pipeline(pipeline), parameters)
        self._open[arrival.request] = submission
        self.traces.add(trace)
        return submission

    def serve(self, change: ServingChanged) -> None:
        """Change what is served, with models that the executor knows; nothing is submitted to retired pipelines.

        The pipelines of a change that is rejected are to be retired as well.
        """
        for pipeline in change.pipelines:
            self._stages[pipeline.name] = pipeline.stages
            self._meters.serve(pipeline.name, [stage.name for stage in pipeline.stages])
        for name in change.retired:
            self._stages.pop(name, None)
            self._meters.forget(name)
        self._enqueue(change)

    async def wait_forgotten(self, model: str) -> None:
        """Wait until the scheduler has forgotten a model of retired pipelines; one may wait for a model at a time.

        Until then a request may wait for it, even where no partition is up, and a batch of it may run.
        """
        forgotten = self._leaving[model] = self._loop.create_future()
        self._flush_soon()
        await forgotten

    def cancel(self, request: int) -> None:
        """Record that the client of a request is gone; nothing happens when it has its outcome already."""
        if request not in self._open:
            return
        if request in self._held:
            self._now_ns = self._clock()
            self._end_held(request, Answer(Outcome.CANCELLED_CLIENT, _CANCELLED))
            return
        cancellation = RequestCancelled(request)
        if request > self._last_arrived or request in self._resumed:
            # The scheduler does not know it yet: it follows its arrival, for which a flush is due.
            self._arrivals.append(cancellation)
        else:
            self._enqueue(cancellation)

    def report(self, event: AnyEvent, details: ProcessDetails = NO_DETAILS, /) -> None:
        """Take an event of the executor; the inventory gets those about partitions, too, with the details."""
        if type(event) in _PARTITION_EVENTS:
            self._inventory.apply(cast(PartitionEvent, event), details)
        self._enqueue(event)

    def _enqueue(self, event: AnyEvent) -> None:
        """Queue an event for the scheduler, which handles it in the loop's next iteration."""
        self._queues[PRIORITY[type(event)]].append(event)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    async def drain(self, timeout_s: float) -> None:
        """Reject new requests, and return when the open ones have ended or the time is over."""
        self._draining = True
        self._enqueue(DrainStarted())
        if self._open:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_s)

    def close(self) -> int:
        """Refuse new requests, and answer the open ones that the server has stopped; returns how many there were."""
        self._flush()  # requests that came while a drain ended are refused like those before
        return self._end()

    def _end(self) -> int:
        self._closed = True
        self._timer.close()
        self._plans.close()
        given_up = list(self._open)
        self._held.clear()
        for request in given_up:
            self._settle(request, Answer(Outcome.FAILED_UNAVAILABLE, "the server stopped before the request was done"))
            self._executor.discard(request)
        self._deliver()
        return len(given_up)

    def _alarm(self) -> None:
        self._armed_ns = None
        self._flush_soon()

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            self._drive()
        except Exception:  # an invariant of the scheduler is broken, so its further decisions are not reliable
            logger.critical("the scheduler failed; the server stops", exc_info=True)
            self._end()
            self.failed.set()
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Hand over the answers, after all that the scheduler decided: a batch is not to wait for their encoding."""
        answered, self._answered = self._answered, []
        for submission, answer in answered:
            submission.settle(answer)

    def _drive(self) -> None:
        now_ns = self._now_ns = self._clock()
        began_ns, self._received_ns = self._received_ns or now_ns, 0
        if (delay := self._turns.begin(began_ns)) is not None:
            self._carry_out(delay, self._scheduler.handle(delay, now_ns))
        behind = False
        for _ in range(MAX_ROUNDS):
            if self._take_events(now_ns, behind) and not behind:
                behind = True
                now_ns = self._now_ns = self._clock()
            due_ns = self._scheduler.next_wakeup_ns()
            if due_ns is None or due_ns > now_ns:
                break
            self._carry_out(None, self._scheduler.handle_wakeup(now_ns))
        if behind:
            self._loop.call_soon(self._flush)
        # Only now: the events that these decisions led to have been handled as well.
        self._flush_due = behind
        if due_ns != self._armed_ns:
            self._armed_ns = due_ns
            self._timer.arm(due_ns)
        self._turns.end(self._clock(), len(self._arrivals))
        if self._leaving:
            self._note_forgotten()

    def _note_forgotten(self) -> None:
        known = self._scheduler.dispatcher.models
        for model in [model for model in self._leaving if model not in known]:
            forgotten = self._leaving.pop(model)
            if not forgotten.done():
                forgotten.set_result(None)

    def _take_events(self, now_ns: int, behind: bool) -> bool:
        """Handle the queued events; returns whether arrivals are left, as they are if it is `behind` already."""
        scheduler = self._scheduler
        completions, cancellations, arrivals = self._queues
        while True:
            if completions:
                event = completions.popleft()
                if isinstance(event, BatchCompleted | BatchFailed | BatchRevoked):
                    self._runs.ended(event, now_ns)
            elif cancellations:
                event = cancellations.popleft()
            elif arrivals and not behind:
                event = arrivals.popleft()
                if arrivals and isinstance(event, RequestArrived) and not self._draining:
                    self._last_arrived = event.request
                    behind = is_spent(event, now_ns, self._clock())
            else:
                if not arrivals:
                    self._last_arrived = self._next_request
                    if self._resumed:
                        self._resumed.clear()
                return behind
            self._carry_out(event, scheduler.handle(event, now_ns))

    def _carry_out(self, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if self._observe is not None:
            try:
                self._observe(self._now_ns, event, decisions)
            except OSError as error:  # a full disk is no reason to stop serving
                self._observe = None
                logger.error("the journal cannot be written, so nothing is recorded from here on: %s", error)
        apply = self._apply
        combinations: list[CombineOutputs] = []
        for decision in decisions:
            if isinstance(decision, CombineOutputs):
                combinations.append(decision)
                continue
            if combinations:
                self._local.combine(combinations)
                combinations = []
            apply[type(decision)](decision)
        if combinations:
            self._local.combine(combinations)

    def _dispatch(self, batch: DispatchBatch) -> None:
        opened = self._open
        members = [opened[member.request] for member in batch.members]
        self._runs.dispatched(batch, members, self._now_ns, self._scheduler.dispatcher.batches[batch.batch].rule)
        try:
            self._executor.run(batch)
        except WorkerGone as error:  # the report of it is in the queue, behind what led to this batch
            self._enqueue(BatchFailed(batch.batch, FailureCause.WORKER_LOST, str(error)))
        except PartitionError as error:
            self._enqueue(BatchFailed(batch.batch, FailureCause.RESOURCES, f"the batch could not be started: {error}"))
        except Exception as error:  # any error ends this batch and nothing else
            logger.exception("batch %d of %s could not be started", batch.batch, batch.model)
            self._enqueue(BatchFailed(batch.batch, FailureCause.BACKEND, f"the batch could not be started: {error}"))

    def _revoke(self, decision: RevokeBatch) -> None:
        self._executor.revoke(decision.batch)

    def _complete(self, decision: CompleteRequest) -> None:
        try:
            tensors, release = self._executor.take_outputs(decision.request)
        except Exception as error:  # the request is settled all the same
            logger.exception("the outputs of request %d could not be put together", decision.request)
            self._executor.discard(decision.request)
            self._settle(decision.request, Answer(Outcome.FAILED_BACKEND, f"the answer could not be built: {error}"))
        else:
            trace = self._open[decision.request].trace
            # Every stage may have been answered from the cache.
            reason = "" if trace.runs else _FROM_CACHE
            if trace.partial:
                reason = "; ".join([each.text for each in trace.partial])
            self._settle(decision.request, Answer(decision.outcome, reason, outputs=tensors, release=release))

    def _refuse(self, decision: RejectRequest | EvictRequest) -> None:
        self._executor.discard(decision.request)
        wait_ns = decision.retry_after_ns
        retry_after_s = None if wait_ns is None else max(1, -(-wait_ns // NS_PER_S))
        self._settle(decision.request, Answer(decision.outcome, decision.reason, retry_after_s))

    def _fail(self, decision: FailRequest) -> None:
        self._executor.discard(decision.request)
        failure = self._open[decision.request].failure
        self._settle(decision.request, Answer(decision.outcome, decision.reason, failure=failure))

    def _cancelled(self, decision: CancelRequest) -> None:
        self._executor.discard(decision.request)
        self._settle(decision.request, Answer(decision.outcome, _CANCELLED))

    def _settle(self, request: int, answer: Answer, *, counted: bool = False) -> None:
        opened = self._open.pop(request)
        trace = opened.trace
        if self._now_ns < trace.arrived_ns:
            trace.arrived_ns = self._now_ns  # it ended before it was to begin
        trace.outcome, trace.reason, trace.ended_ns = answer.outcome, answer.reason, self._now_ns
        if answer.outcome is not _COMPLETED:
            self.traces.add_missed(trace)
        opened.meter.request_ended(answer.outcome, self._now_ns - trace.arrived_ns)
        if trace.span_id:
            opened.meter.note_exemplar(answer.outcome, self._now_ns - trace.arrived_ns, trace.context.trace_id)
        if answer.outcome is not _COMPLETED or (trace.is_pipeline and not counted):
            self._meters.statistics.request_ended(trace)
        if self._on_ended is not None:
            self._on_ended(trace)
        self._answered.append((opened, answer))
        if not self._open:
            self._idle.set()
