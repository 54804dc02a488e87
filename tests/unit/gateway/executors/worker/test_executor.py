import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, Member, ReleaseReason, UnloadModel
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
)
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.partitions.inventory import NO_DETAILS, PartitionEvent, ProcessDetails
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE, PipelineWiring, StageWiring, TensorRef
from sluice.gateway.tensors.responses import ModelResponse
from sluice.models.errors import PartitionError
from sluice.models.pipelines.memory import OutputMemory
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec
from sluice.models.units import NS_PER_S
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.claim import take
from sluice.mps.ipc.messages import (
    RESPONSE_WINDOW,
    BatchFault,
    BatchFinished,
    BatchRefused,
    BatchReport,
    BatchWithdrawn,
    CancelResponses,
    LoadResult,
    ModelFile,
    OutputTensor,
    ResponseSent,
    ResponseTaken,
    RunBatch,
    WithdrawBatch,
    WorkerReady,
)
from sluice.mps.partitions.cpu import default_partitions
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.gateway.inventory import summary
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

SPEC = ModelSpec(
    "mlp", 1, (TensorSpec("x", DataType.FP32, (2,)),), (TensorSpec("y", DataType.FP32, (VARIABLE,)),), max_batch_size=4
)
PLAN = PipelineWiring(
    True,
    (StageWiring({"x": TensorRef(REQUEST_STAGE, "x")}, None, "", ()),),
    {"y": (TensorRef(0, "y"),)},
    OutputMemory(0, 1),
)
TABLE = LatencyTable.from_ms({1: 1.0})
MLP, BIG = (ModelFile(f"{name}:1", f"{name}.onnx", "onnxruntime", (1,), batchable=True) for name in ("mlp", "big"))
READY = WorkerReady(1, (0,), 1, (LoadResult("mlp:1", TABLE), LoadResult("big:1", None, "out of memory")))


class Packets:
    """A worker's channel: what was sent, and what has `arrived` that the loop has not come to yet."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.claims: dict[int, int] = {}
        self.killed: list[str] = []
        self.refusal: Exception | None = None
        self.arrived: Callable[[], None] = lambda: None

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(message)
        if fds and isinstance(message, RunBatch):
            self.claims[message.batch] = fds[0]

    def deliver_pending(self) -> None:
        arrived, self.arrived = self.arrived, lambda: None
        arrived()

    def kill(self, reason: str) -> None:
        self.killed.append(reason)


class Bench:
    """An executor whose one worker is played by the test, over the real supervisor's regions."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        (partition,) = default_partitions(1)
        self.reported: list[str] = []
        self.events: list[AnyEvent] = []
        self.executor = WorkerExecutor(
            [WorkerSpec(partition, (MLP, BIG), 4096, initial=())], {"mlp:1": PLAN}, {"mlp:1": SPEC}, 1 << 16
        )
        self.supervisor = self.executor._supervisor
        self.executor._report = self.report
        self.worker = Packets()
        self.output = self.supervisor.share_region(Region.create("test-outputs", 4096))
        self.executor.worker_ready("cpu0", cast("WorkerProcess", self.worker), READY, self.output)
        self._batches = 0

    def report(self, event: AnyEvent, details: ProcessDetails = NO_DETAILS, /) -> None:
        self.events.append(event)
        if isinstance(event, PartitionEvent):
            self.reported += summary(event, details)

    def send(self, request: int, reason: ReleaseReason = ReleaseReason.IDLE) -> int:
        """One request, one row, one batch; returns the batch."""
        self._batches += 1
        self.executor.admit(request, "mlp:1", {"x": np.ones((1, 2), np.float32)}, 1, 8)
        members = (Member(request, 0, 1),)
        self.executor.run(DispatchBatch(self._batches, "cpu0", "mlp:1", 1, members, reason))
        return self._batches

    def done(self, batch: int, slot: int = 0, region: int | None = None, worker: Packets | None = None) -> None:
        place = (self.output if region is None else region), max(slot, 0), 12
        self.say(BatchFinished(batch, 5, 9, (OutputTensor("y", DataType.FP32, (1, 3), *place),), slot), worker)

    def say(self, answer: BatchReport, worker: Packets | None = None) -> None:
        """Let a worker answer, the first one by default."""
        self.executor.message("cpu0", cast("WorkerProcess", worker or self.worker), answer)

    async def at(self, second: float) -> None:
        """Return at that time of the loop's clock."""
        await asyncio.sleep(second - self.loop.time())

    def mapped(self, region: int) -> bool:
        try:
            self.supervisor.region(region)
        except KeyError:
            return False
        return True


def benched(test: Callable[["Bench"], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a loop of its own whose clock starts at 0, and give the memory up at the end."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await test(bench)
        await bench.executor.drain()

    # Not functools.wraps: pytest would look for a fixture of the name of the argument.
    def run() -> None:
        run_virtual(main)

    return run


@benched
async def test_a_worker_that_is_ready_reports_the_models_it_loaded(bench: Bench) -> None:
    assert bench.events == [PartitionReady("cpu0", {"mlp:1": TABLE})]
    assert bench.reported == ["cpu0 ready mlp:1; big:1: out of memory"]


@benched
async def test_a_completed_batch_tells_times_and_the_shapes_of_variable_outputs(bench: Bench) -> None:
    bench.done(bench.send(1))
    assert bench.events[1:] == [BatchCompleted(1, 5, 9, (), "y=3")]


@benched
async def test_only_a_running_batch_that_failed_before_explains_the_loss_of_its_worker(bench: Bench) -> None:
    explained = [bench.executor.runs_retry("cpu0")]
    first = bench.send(1)
    bench.send(2, ReleaseReason.RETRY)
    explained.append(bench.executor.runs_retry("cpu0"))
    bench.done(first)
    explained.append(bench.executor.runs_retry("cpu0"))
    bench.executor.worker_lost("cpu0", "it was killed")
    assert [*explained, bench.executor.runs_retry("cpu0")] == [False, False, True, False]


@benched
async def test_a_slot_goes_back_with_the_next_batch_after_its_answer_was_released(bench: Bench) -> None:
    bench.done(bench.send(1), slot=64)
    bench.send(2)
    _, release = bench.executor.take_outputs(1)
    release()
    bench.send(3)
    assert [message.release for message in bench.worker.sent if isinstance(message, RunBatch)] == [(), (), (64,)]


@benched
async def test_outputs_of_their_own_region_are_unmapped_when_the_answer_was_released(bench: Bench) -> None:
    overflow = bench.supervisor.share_region(Region.create("test-overflow", 4096))
    bench.done(bench.send(1), slot=-1, region=overflow)
    _, release = bench.executor.take_outputs(1)
    assert bench.mapped(overflow)
    release()
    assert not bench.mapped(overflow)


@benched
async def test_a_lost_worker_fails_its_batches_and_its_outputs_live_until_they_are_released(bench: Bench) -> None:
    bench.done(bench.send(1))
    bench.send(2)
    bench.send(3)
    bench.executor.worker_lost("cpu0", "killed by SIGKILL")
    assert bench.events[2:] == [
        PartitionLost("cpu0", "killed by SIGKILL"),
        BatchFailed(2, FailureCause.WORKER_LOST, "killed by SIGKILL"),  # the running one first
        BatchFailed(3, FailureCause.WORKER_LOST, "killed by SIGKILL"),
    ]
    assert bench.reported[1:] == ["cpu0 lost: killed by SIGKILL"]
    assert bench.executor.arena_bytes == 0
    assert bench.mapped(bench.output)
    _, release = bench.executor.take_outputs(1)
    release()
    assert not bench.mapped(bench.output)
    with pytest.raises(PartitionError, match="partition cpu0 has no worker"):
        bench.send(4)


@benched
async def test_a_worker_that_is_lost_before_it_is_ready_is_reported_as_well(bench: Bench) -> None:
    for _ in range(2):
        bench.executor.worker_lost("cpu0", "it ended with status 1")
    assert bench.events[1:] == [PartitionLost("cpu0", "it ended with status 1")] * 2


@benched
async def test_failed_and_revoked_batches_are_reported_and_give_their_inputs_back(bench: Bench) -> None:
    failed = bench.send(1)
    bench.executor.revoke(failed)
    assert bench.worker.sent[-1] == WithdrawBatch(failed), "a batch that may be running has to be asked for"
    bench.say(BatchRefused(failed, "mlp:1: bad row"))
    revoked = bench.send(2)
    bench.executor.revoke(revoked)
    bench.say(BatchWithdrawn(revoked))
    assert bench.events[1:] == [BatchFailed(failed, FailureCause.BACKEND, "mlp:1: bad row"), BatchRevoked(revoked)]
    assert bench.executor.arena_bytes == 0


@benched
async def test_a_batch_behind_another_one_is_taken_back_at_once_unless_the_worker_has_begun_it(bench: Bench) -> None:
    first = bench.send(1)
    taken, begun = bench.send(2), bench.send(3)
    theirs = [os.dup(bench.worker.claims[each]) for each in (taken, begun)]
    assert take(theirs[1]), "the worker begins a batch"
    bench.executor.revoke(taken)
    bench.executor.revoke(begun)
    assert bench.events[1:] == [BatchRevoked(taken)]
    assert not take(theirs[0]), "it is not run any more"
    assert WithdrawBatch(begun) not in bench.worker.sent
    bench.done(first)
    bench.done(begun, slot=1)
    with pytest.raises(PartitionError, match="an answer to batch 2, expected one of those sent to it"):
        bench.done(taken)
    for claim in theirs:
        os.close(claim)


@benched
async def test_a_batch_whose_model_gives_no_such_output_any_more_fails_alone(bench: Bench) -> None:
    failed, next_one = bench.send(1), bench.send(2)
    bench.executor.message(
        "cpu0",
        cast("WorkerProcess", bench.worker),
        answer(failed, outputs=(OutputTensor("z", DataType.FP32, (1, 3), 2, 64, 12),), slot=64),
    )
    assert bench.events[1:] == [BatchFailed(failed, FailureCause.BACKEND, "mlp:1: output y is missing")]
    bench.done(next_one)
    bench.send(3)
    assert bench.worker.sent[-1].release == (64,)


@benched
async def test_a_batch_without_memory_is_distinguished_from_one_that_failed_by_its_content(bench: Bench) -> None:
    failed = bench.send(1)
    bench.say(BatchRefused(failed, "mlp:1: no memory", BatchFault.MEMORY))
    assert bench.events[1:] == [BatchFailed(failed, FailureCause.OUT_OF_MEMORY, "mlp:1: no memory")]
    assert bench.executor.arena_bytes == 0


@benched
async def test_a_worker_whose_context_is_lost_is_killed_and_its_batches_are_lost_with_it(bench: Bench) -> None:
    post = bench.supervisor._by_name["cpu0"]
    post.process = cast("WorkerProcess", bench.worker)
    failed, waiting = bench.send(1), bench.send(2)
    bench.say(BatchRefused(failed, "mlp:1: CUDA failure 700", BatchFault.DEVICE))
    assert bench.worker.killed == ["mlp:1: CUDA failure 700"]
    assert bench.events[1:] == []
    post.process = None
    bench.executor.worker_lost("cpu0", "mlp:1: CUDA failure 700")
    assert bench.events[2:] == [
        BatchFailed(each, FailureCause.WORKER_LOST, "mlp:1: CUDA failure 700") for each in (failed, waiting)
    ]


@benched
async def test_workers_that_go_together_are_reported_at_once_and_once(bench: Bench) -> None:
    reason = "mlp:1: CUDA failure 700"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            bench.executor.recovery, "context_lost", lambda partition, process, why: {"cpu0": why, "gone": why}
        )
        failed = bench.send(1)
        bench.say(BatchRefused(failed, reason, BatchFault.DEVICE))
    assert bench.events[1:] == [PartitionLost("cpu0", reason)]
    bench.executor.worker_lost("cpu0", reason)
    assert bench.events[2:] == [BatchFailed(failed, FailureCause.WORKER_LOST, reason)]
    assert bench.reported[1:] == [f"cpu0 lost: {reason}"]


@benched
async def test_a_batch_that_cannot_be_sent_leaves_nothing_behind(bench: Bench) -> None:
    bench.done(bench.send(1), slot=64)
    _, release = bench.executor.take_outputs(1)
    release()
    bench.worker.refusal = PartitionError("too long")
    with pytest.raises(PartitionError, match="too long"):
        bench.send(2)
    assert bench.executor.arena_bytes == 0
    bench.worker.refusal = None
    bench.send(3)
    assert bench.worker.sent[-1].release == (64,)
    bench.executor.worker_lost("cpu0", "killed by SIGKILL")
    assert [event.batch for event in bench.events if isinstance(event, BatchFailed)] == [3]


@benched
async def test_a_worker_whose_running_batch_does_not_end_is_killed(bench: Bench) -> None:
    bench.send(1)
    await bench.at(9.0)
    bench.send(2)
    await bench.at(9.9)
    bench.done(1)
    await bench.at(19.8)
    assert bench.worker.killed == []
    await bench.at(20.0)
    assert bench.worker.killed == ["batch 2 did not end within 10 s"]


@benched
async def test_a_batch_that_has_ended_is_not_missed_because_the_loop_was_busy(bench: Bench) -> None:
    bench.send(1)
    await bench.at(9.9)
    bench.worker.arrived = partial(bench.done, 1)
    await bench.at(10.1)
    assert [event.batch for event in bench.events if isinstance(event, BatchCompleted)] == [1]
    bench.send(2)
    await bench.at(20.0)
    bench.worker.arrived = partial(bench.executor.worker_lost, "cpu0", "killed by SIGKILL")
    await bench.at(60.0)
    assert bench.worker.killed == []


@benched
async def test_time_in_which_the_loop_stood_still_is_not_held_against_a_worker(bench: Bench) -> None:
    bench.send(1)
    await bench.at(3.5)
    bench.loop.now_ns += 60 * NS_PER_S
    await bench.at(69.4)  # it was due for a look at 4.0, and had one at 63.5
    assert bench.worker.killed == []
    await bench.at(69.6)
    assert bench.worker.killed == ["batch 1 did not end within 10 s"]


@benched
async def test_a_slow_model_has_twenty_times_its_latency(bench: Bench) -> None:
    slow = WorkerReady(1, (0,), 1, (LoadResult("mlp:1", LatencyTable.from_ms({1: 700.0})),))
    bench.executor.worker_ready("cpu0", cast("WorkerProcess", bench.worker), slow, bench.output)
    bench.send(1)
    await bench.at(13.9)
    assert bench.worker.killed == []
    await bench.at(14.1)
    assert bench.worker.killed == ["batch 1 did not end within 14 s"]


@benched
async def test_a_model_that_was_loaded_is_reported_with_its_table_and_watched_by_it(bench: Bench) -> None:
    slow = LatencyTable.from_ms({1: 700.0})
    bench.executor.model_loaded("cpu0", LoadResult("mlp:1", slow))
    bench.executor.model_loaded("cpu0", LoadResult("big:1", None, "out of memory"))
    bench.executor.model_unloaded("cpu0", "big:1")
    assert bench.events[0] == PartitionReady("cpu0", {"mlp:1": TABLE})
    assert bench.events[1:] == [
        ModelLoaded("cpu0", "mlp:1", slow),
        ModelLoadFailed("cpu0", "big:1", "out of memory"),
        ModelUnloaded("cpu0", "big:1"),
    ]
    assert bench.reported[1:] == ["cpu0 loaded mlp:1", "cpu0 did not load big:1: out of memory", "cpu0 unloaded big:1"]
    bench.send(1)
    await bench.at(13.9)
    assert bench.worker.killed == []
    await bench.at(14.1)
    assert bench.worker.killed == ["batch 1 did not end within 14 s"]


@benched
async def test_a_batch_has_its_time_after_a_model_was_loaded(bench: Bench) -> None:
    bench.executor.load(LoadModel("cpu0", "big:1"))
    bench.send(1)
    await bench.at(25.0)
    bench.executor.model_loaded("cpu0", LoadResult("big:1", None, "out of memory"))
    await bench.at(34.9)
    assert bench.worker.killed == []
    await bench.at(35.1)
    assert bench.worker.killed == ["batch 1 did not end within 10 s"]


@benched
async def test_an_order_to_a_worker_that_is_gone_yields_nothing_but_its_loss(bench: Bench) -> None:
    bench.executor.worker_lost("cpu0", "killed by SIGKILL")
    bench.executor.load(LoadModel("cpu0", "big:1"))
    bench.executor.unload(UnloadModel("cpu0", "mlp:1"))
    assert bench.events[1:] == [PartitionLost("cpu0", "killed by SIGKILL")]


@benched
async def test_a_worker_that_is_ended_with_the_server_is_not_watched_any_more(bench: Bench) -> None:
    bench.send(1)
    await bench.executor.drain()
    await bench.at(60.0)
    assert bench.worker.killed == []


@benched
async def test_an_idle_worker_has_all_the_time_in_the_world(bench: Bench) -> None:
    bench.done(bench.send(1))
    await bench.at(60.0)
    bench.send(2)
    await bench.at(69.9)
    assert bench.worker.killed == []
    await bench.at(70.1)
    assert bench.worker.killed == ["batch 2 did not end within 10 s"]


def answer(batch: int = 1, **changed: Any) -> BatchFinished:
    """The answer to a batch of one row."""
    output = OutputTensor("y", DataType.FP32, (1, 3), 2, 0, 12)
    return msgspec.structs.replace(BatchFinished(batch, 5, 9, (output,), 0), **changed)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (answer(3), "an answer to batch 3, expected one of those sent to it: [1, 2]"),
        (answer(2), "batch 2 has ended before batch 1, which was sent before it"),
        (BatchRefused(3, "no"), "an answer to batch 3, expected one of those sent to it: [1, 2]"),
        (
            answer(outputs=(OutputTensor("y", DataType.FP32, (2, 3), 2, 0, 24),)),
            "batch 1 of mlp:1: output y has the shape [2, 3], expected 1 rows",
        ),
        (
            answer(outputs=(OutputTensor("y", DataType.BYTES, (1, 3), 2, 0, 12, (0, 4, 12)),)),
            "batch 1 of mlp:1: output y has 3 offsets of rows, expected those of 1 rows and the end",
        ),
        (
            answer(confidences=((0.5,),)),
            "batch 1 of mlp:1: it has [1] values of its confidences, expected []",
        ),
        (answer(ended_ns=2), "batch 1 of mlp:1: it ended 3 ns before it began"),
    ],
)
def test_an_answer_that_does_not_fit_the_batches_of_the_worker_is_refused(
    wrong: BatchFinished | BatchRefused, reason: str
) -> None:
    @benched
    async def test(bench: Bench) -> None:
        bench.send(1)
        bench.send(2)
        with pytest.raises(PartitionError) as error:
            bench.say(wrong)
        assert str(error.value) == reason
        assert bench.events[1:] == []
        # The worker is killed, and its batches are lost with it.
        bench.executor.worker_lost("cpu0", reason)
        assert bench.events[2:] == [BatchFailed(each, FailureCause.WORKER_LOST, reason) for each in (1, 2)]
        assert bench.executor.arena_bytes == 0

    test()


class Responses:
    """The decoupled model on the bench, and the responses to request 1 as they come."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        decoupled = msgspec.structs.replace(SPEC, max_batch_size=0, decoupled=True)
        bench.executor.add({"mlp:1": PLAN._replace(batchable=False, outputs={})}, {"mlp:1": decoupled}, {})
        self.taken: list[ModelResponse] = []
        bench.executor.responses.open(1, self.taken.append)
        self.batch = bench.send(1)

    def say(self, *values: float, slot: int = 0, region: int | None = None, batch: int = 1) -> None:
        """Let the worker send a response of these values."""
        place = (self.bench.output if region is None else region), max(slot, 0), 4 * len(values)
        output = OutputTensor("y", DataType.FP32, (len(values),), *place)
        self.bench.say(ResponseSent(batch, (output,), slot))

    @property
    def answers(self) -> list[Any]:
        """The messages to the worker after the batch."""
        return [each for each in self.bench.worker.sent if not isinstance(each, RunBatch)]


@benched
async def test_a_response_goes_to_its_request_and_its_slot_back_at_once(bench: Bench) -> None:
    responses = Responses(bench)
    bench.supervisor.region(bench.output).view[64:72] = np.array([1, 2], np.float32).tobytes()
    responses.say(1, 2, slot=64)
    (response,) = responses.taken
    assert (response.outputs["y"].tolist(), response.is_final) == ([1, 2], False)  # type: ignore[union-attr]
    assert responses.answers == []
    response.release()
    response.release()
    assert responses.answers == [ResponseTaken(1, 64)]


@benched
async def test_the_end_of_a_decoupled_batch_completes_its_request_without_outputs(bench: Bench) -> None:
    responses = Responses(bench)
    bench.say(ResponseSent(1, (), -1, "wrong"))
    bench.say(ResponseSent(1, (), -1, is_final=True))
    assert [(str(each.error), each.is_final) for each in responses.taken] == [("wrong", False), ("None", True)]
    bench.say(BatchFinished(1, 5, 9, (), -1))
    assert bench.events[1:] == [BatchCompleted(1, 5, 9, (), "")]
    assert bench.executor.take_outputs(1)[0] == {}


@benched
async def test_a_response_that_outlives_its_batch_frees_its_memory_as_answers_do(bench: Bench) -> None:
    responses = Responses(bench)
    overflow = bench.supervisor.share_region(Region.create("test-overflow", 4096))
    responses.say(1, slot=64)
    responses.say(2, slot=-1, region=overflow)
    bench.say(BatchFinished(1, 5, 9, (), -1))
    for response in responses.taken:
        response.release()
    assert not bench.mapped(overflow)
    bench.send(2)
    runs = [message for message in bench.worker.sent if isinstance(message, RunBatch)]
    assert (runs[-1].release, responses.answers) == ((64,), [])


@benched
async def test_a_cancelled_request_is_cancelled_with_the_worker(bench: Bench) -> None:
    responses = Responses(bench)
    bench.executor.discard(1)
    bench.executor.responses.close(1)
    responses.say(1, slot=64)
    assert responses.answers == [CancelResponses(1), ResponseTaken(1, 64)]
    bench.say(BatchFinished(1, 5, 9, (), -1))
    bench.executor.discard(1)
    assert len(responses.answers) == 2


@benched
async def test_a_batch_that_sends_responses_goes_on_and_one_that_does_not_hangs(bench: Bench) -> None:
    responses = Responses(bench)
    for second in (8, 16, 24):
        await bench.at(second)
        responses.say(1)
        responses.taken.pop().release()
    await bench.at(33)
    assert bench.worker.killed == []
    await bench.at(36)
    assert bench.worker.killed == ["batch 1 did not end within 10 s"]


@benched
async def test_a_batch_that_waits_for_its_client_does_not_hang(bench: Bench) -> None:
    responses = Responses(bench)
    for _ in range(RESPONSE_WINDOW):
        responses.say(1)
    await bench.at(200)
    assert bench.worker.killed == []
    responses.taken.pop().release()
    await bench.at(212)
    assert bench.worker.killed == ["batch 1 did not end within 10 s"]


@benched
async def test_a_worker_sends_no_more_responses_than_it_may(bench: Bench) -> None:
    responses = Responses(bench)
    for _ in range(RESPONSE_WINDOW):
        responses.say(1)
    with pytest.raises(PartitionError, match="batch 1 has more than 16 responses that are not taken"):
        responses.say(1)


@benched
async def test_responses_that_cannot_be_are_refused(bench: Bench) -> None:
    with pytest.raises(PartitionError, match="a response came, but the model is not decoupled"):
        bench.say(ResponseSent(bench.send(1), (), -1))
    bench.say(BatchRefused(1, "no"))
    bench.executor.discard(1)
    responses = Responses(bench)
    bench.send(2)
    output = OutputTensor("z", DataType.FP32, (1,), bench.output, 0, 4)
    with pytest.raises(PartitionError, match="the model has no output z"):
        bench.say(ResponseSent(responses.batch, (output,), 0))
    with pytest.raises(PartitionError, match=f"a response of batch 3 came while batch {responses.batch} was running"):
        responses.say(1, batch=3)
