"""A slot of a class of remote partitions: its workers come, load models, are lost, and are given up."""

import msgspec
import pytest

from sluice.batcher.interface.decisions import LoadModel, UnloadModel
from sluice.batcher.interface.events import (
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    LinkMeasured,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
)
from sluice.gateway.executors.remote.partition import NOT_PLACED
from sluice.gateway.worker_protocol.client import SessionRefused
from sluice.gateway.worker_protocol.messages import (
    Asked,
    AskModelReady,
    Draining,
    Fault,
    FilePart,
    FileWanted,
    Finished,
    Loaded,
    ModelReadiness,
    Pong,
    RemoteLoad,
    RemoteRun,
    RunRefused,
    ServedWorker,
    SessionTensor,
    Withdraw,
    Withdrawn,
    WorkerBack,
    WorkerLost,
)
from sluice.models.errors import PartitionError, WorkerGone
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import ModelMemory
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.messages import LoadResult
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition
from tests.support.gateway.assembly_bench import rows
from tests.support.gateway.remote_bench import MS, TABLE, Bench, benched

READY = PartitionReady("edge-0", {"small:1": TABLE}, node="n1")


def loads(session: object) -> list[str]:
    return [each.model.key for each in session.sent if isinstance(each, RemoteLoad)]  # type: ignore[attr-defined]


# -- a worker gets ready


@benched()
async def test_a_worker_is_ready_when_it_has_loaded_the_models_of_its_slot(bench: Bench) -> None:
    bench.peers["n1a:1"].keeps = True
    session = await bench.place()
    assert (bench.take(), loads(session)) == ([], ["small:1"])
    session.loaded("small:1")
    await bench.wait()
    assert bench.take() == [READY]
    details = bench.details[-1]
    assert (details.worker, details.cores, details.node, details.url) == (77, (3,), "n1", "n1a:1")
    assert details.resized == CpuPartition("edge-0", (3,)), "the partition of the worker, by the name of the slot"
    assert bench.source.heard == ["leased edge-0"]


@benched()
async def test_a_model_that_does_not_load_is_named_and_the_rest_serves(bench: Bench) -> None:
    bench.peers["n1a:1"].broken["small:1"] = "no such file"
    await bench.place()
    assert bench.take() == [PartitionReady("edge-0", {}, node="n1")]
    assert bench.details[-1].failed == {"small:1": "no such file"}


@benched()
async def test_a_worker_of_another_kind_is_refused_with_both_named_and_tried_again_after_5_s(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    right, peer.welcome = peer.welcome, msgspec.structs.replace(peer.welcome, kind="cpu4")
    session = await bench.place()
    (lost,) = bench.take()
    assert isinstance(lost, PartitionLost)
    assert lost.reason == "the worker n1a at n1a:1 is a partition of the kind cpu4, expected cpu1"
    assert not session.is_open
    peer.welcome = right
    await bench.wait(4.9)
    assert len(peer.sessions) == 1
    await bench.wait(0.2)
    assert bench.take() == [READY]


@benched()
async def test_a_worker_of_another_version_is_refused_with_both_named(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.welcome = msgspec.structs.replace(peer.welcome, version="0.9")
    await bench.place()
    (lost,) = bench.take()
    assert isinstance(lost, PartitionLost)
    assert lost.reason == "the worker n1a at n1a:1 has the version 0.9, expected 1.2.3"


@pytest.mark.parametrize("node", ["", "n" * 254, "n\n1"])
def test_a_worker_on_a_node_without_a_usable_name_is_refused(node: str) -> None:
    @benched()
    async def scenario(bench: Bench) -> None:
        peer = bench.peers["n1a:1"]
        peer.welcome = msgspec.structs.replace(peer.welcome, node=node)
        await bench.place()
        (lost,) = bench.take()
        assert isinstance(lost, PartitionLost)
        assert "expected a name of 1 to 253 printable characters" in lost.reason

    scenario()


@benched()
async def test_a_worker_that_cannot_be_reached_is_tried_again_and_reported_once(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.refusal = PartitionError("n1a:1 cannot be reached: connection refused")
    bench.source.placed("edge-0", "n1a:1", "")
    await bench.wait(30)
    assert bench.take() == [PartitionLost("edge-0", "n1a:1 cannot be reached: connection refused")]
    assert not bench.details[-1].was_up, "it is no restart of a worker"
    peer.refusal = None
    await bench.wait(2.1)
    assert bench.take() == [READY]


@benched()
async def test_a_try_that_fails_for_no_known_reason_is_reported_and_repeated(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.refusal = RuntimeError("a fault of ours")
    bench.source.placed("edge-0", "n1a:1", "")
    await bench.wait(12)
    assert bench.take() == [
        PartitionLost("edge-0", "the worker at n1a:1 could not be tried: internal error: a fault of ours")
    ]
    peer.refusal = None
    await bench.wait(5)
    assert bench.take() == [READY]


@benched()
async def test_a_refusal_for_good_is_asked_about_every_5_s_only(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.refusal = SessionRefused("n1a:1 refused the session: wrong key", "wrong key", retry=False)
    bench.source.placed("edge-0", "n1a:1", "")
    await bench.wait(0.1)
    peer.refusal = None
    await bench.wait(4.8)
    assert peer.sessions == []
    await bench.wait(0.2)
    assert len(peer.sessions) == 1


@benched()
async def test_a_worker_of_another_gateway_is_left_alone_until_the_source_says_so(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.refusal = SessionRefused("n1a:1 refused the session: leased", "leased", holder="other")
    bench.source.placed("edge-0", "n1a:1", "")
    await bench.wait(0.1)
    peer.refusal = None
    await bench.wait(60)
    assert (bench.source.heard, peer.sessions) == (["refused edge-0 other"], [])
    assert bench.details[-1].url == "", "the slot is vacant, which is no fault"
    await bench.place()
    assert bench.take()[-1] == READY


@benched()
async def test_the_source_hears_who_else_asks_for_a_worker(bench: Bench) -> None:
    session = await bench.place()
    session.say(Asked("other", 3))
    await bench.wait()
    assert bench.source.heard[-1] == "asked edge-0 other 3"


@benched()
async def test_a_slot_without_a_worker_is_down_for_a_reason(bench: Bench) -> None:
    await bench.place("edge-2", "n2a:1")
    bench.events.clear()
    await bench.wait(5.1)
    assert sorted(map(repr, bench.events)) == [repr(PartitionLost(f"edge-{n}", NOT_PLACED)) for n in range(2)]
    with pytest.raises(PartitionError, match="partition edge-0 has no worker"):
        bench.run(1, 1)


# -- proof of limits


@benched(strict=True)
async def test_a_strict_server_does_not_use_a_worker_without_proof_of_its_limits(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.welcome = msgspec.structs.replace(peer.welcome, worker=ServedWorker(77, (3, 4), Evidence(cores=(3, 4))))
    session = await bench.place()
    (lost,) = bench.take()
    assert isinstance(lost, PartitionLost)
    assert lost.reason == "the worker at n1a:1 is unenforced: the worker runs on cores 3, 4, expected 3"
    assert not session.is_open
    await bench.wait(4.5)
    assert len(peer.sessions) == 1


@benched()
async def test_a_server_that_is_not_strict_uses_it_and_reports_the_evidence(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.welcome = msgspec.structs.replace(peer.welcome, worker=ServedWorker(77, (3, 4), Evidence(cores=(3, 4))))
    await bench.place()
    assert bench.take() == [READY]
    assert bench.details[-1].evidence == Evidence(cores=(3, 4))


# -- batches


@benched()
async def test_a_batch_is_sent_as_it_lies_and_its_outputs_are_those_of_the_worker(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    bench.run(7, 1, 2)
    (run,) = [each for each in session.sent if isinstance(each, RemoteRun)]
    assert run.inputs == (SessionTensor("x", DataType.FP32, (2, 2), 16),)
    assert session.tensors == [[rows(1, 2).tobytes()]]
    await bench.wait(0.01)
    session.finish(7, rows(10, 20), ran_ns=3 * MS)
    await bench.wait(0)
    await bench.wait(0)
    (done,) = bench.take()
    assert isinstance(done, BatchCompleted)
    assert (done.batch, done.ended_ns - done.started_ns) == (7, 3 * MS)
    assert (bench.answer(1), bench.answer(2)) == ([[10.0, 10.5]], [[20.0, 20.5]])


@benched()
async def test_outputs_in_shared_memory_stay_there_for_workers_of_this_machine(bench: Bench) -> None:
    session = await bench.place()
    bench.run(7, 1)
    memory = bench.bodies.allocate(8)
    assert memory is not None
    memory[:] = rows(5).tobytes()
    wire = SessionTensor("probs", DataType.FP32, (1, 2), 8)
    session.say(Finished(7, 0, 1, (wire,)), (memory,))
    await bench.wait()
    outputs = bench.tensors.assembly._requests[1].stage_outputs[0]
    assert outputs is not None
    assert [each.name for each in outputs.outputs.located.values()] == ["probs"]
    assert bench.answer(1) == [[5.0, 5.5]]


@benched()
async def test_a_batch_ended_half_a_round_trip_before_its_answer_came(bench: Bench) -> None:
    session = await bench.place()
    session.say(Pong(1, bench.loop.clock() - 4 * MS, 0))
    await bench.wait()
    bench.take()
    sent_ns = bench.loop.clock()
    bench.run(7, 1)
    await bench.wait(0.02)
    session.finish(7, rows(1), ran_ns=10 * MS)
    await bench.wait(0)
    await bench.wait(0)
    (done,) = bench.take()
    assert isinstance(done, BatchCompleted)
    assert (done.started_ns - sent_ns, done.ended_ns - sent_ns) == (8 * MS, 18 * MS)


@benched()
async def test_a_worker_that_claims_more_time_than_has_passed_did_not_begin_before_it_was_asked(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    sent_ns = bench.loop.clock()
    bench.run(7, 1)
    await bench.wait(0.005)
    session.finish(7, rows(1), ran_ns=1000 * MS)
    await bench.wait(0)
    await bench.wait(0)
    (done,) = bench.take()
    assert isinstance(done, BatchCompleted)
    assert (done.started_ns - sent_ns, done.ended_ns - sent_ns) == (0, 5 * MS)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault.BATCH, FailureCause.BACKEND),
        (Fault.MEMORY, FailureCause.OUT_OF_MEMORY),
        (Fault.STATES, FailureCause.STATES_LOST),
        (Fault.RESOURCES, FailureCause.RESOURCES),
        (Fault.DEADLINE, FailureCause.WORKER_LOST),
    ],
)
def test_a_batch_that_did_not_run_fails_for_the_workers_reason(fault: Fault, cause: FailureCause) -> None:
    @benched()
    async def scenario(bench: Bench) -> None:
        session = await bench.place()
        bench.take()
        bench.run(7, 1)
        session.say(RunRefused(7, "small:1: bad row", fault))
        await bench.wait()
        assert bench.take() == [BatchFailed(7, cause, "small:1: bad row")]
        bench.run(8, 2)
        assert session.runs() == [7, 8]

    scenario()


@benched()
async def test_a_batch_is_taken_back(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    bench.run(7, 1)
    bench.executor.revoke(7)
    bench.executor.revoke(8)
    assert session.sent[-1] == Withdraw(7)
    session.say(Withdrawn(7))
    await bench.wait()
    assert bench.take() == [BatchRevoked(7)]


@benched()
async def test_a_session_without_room_takes_no_batch(bench: Bench) -> None:
    session = await bench.place()
    session.is_full = True
    with pytest.raises(PartitionError, match="no room"):
        bench.run(7, 1)
    session.is_full = False
    bench.run(8, 2)
    assert session.runs() == [8]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Finished(9, 0, 1, ()), "an answer to batch 9, expected one of those sent to it: [7]"),
        (
            Finished(7, 0, 1, (SessionTensor("other", DataType.FP32, (1, 2), 8),)),
            "batch 7 of small:1: output other is none of the model's, which are probs",
        ),
        (
            Finished(7, 0, 1, (SessionTensor("probs", DataType.FP32, (2, 1), 8),)),
            "batch 7 of small:1: output probs has the shape [2, 1], expected [1, 2]",
        ),
        (
            Finished(7, 0, 1, (SessionTensor("probs", DataType.INT64, (1, 1), 8),)),
            "batch 7 of small:1: output probs is INT64, expected FP32",
        ),
        (Finished(7, 0, 1, (), ((0.5,),)), "batch 7 of small:1: it has [1] values of its confidences, expected []"),
        (Finished(7, 0, -1, ()), "batch 7 of small:1: expected times of at least 0 ns, got 0 and -1"),
    ],
)
def test_an_answer_that_cannot_be_true_ends_the_session(answer: Finished, sentence: str) -> None:
    @benched()
    async def scenario(bench: Bench) -> None:
        session = await bench.place()
        bench.take()
        bench.run(7, 1)
        session.say(answer, [memoryview(bytes(8))] * len(answer.outputs))
        await bench.wait()
        lost, failed, *_ = bench.take()
        assert lost == PartitionLost("edge-0", f"node n1: {sentence}")
        assert isinstance(failed, BatchFailed)
        assert (failed.batch, failed.cause) == (7, FailureCause.WORKER_LOST)
        assert not session.is_open

    scenario()


@benched()
async def test_an_output_that_is_missing_fails_the_batch_alone(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    bench.run(7, 1)
    session.say(Finished(7, 0, 1, ()))
    await bench.wait()
    assert bench.take() == [BatchFailed(7, FailureCause.BACKEND, "small:1: output probs is missing")]
    assert session.is_open


@benched(timeout_s=1.0)
async def test_a_batch_that_does_not_end_ends_the_session(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    bench.run(7, 1)
    await bench.wait(2.5)
    lost, failed, *_ = bench.take()
    assert lost == PartitionLost("edge-0", "node n1: batch 7 did not end within 1 s")
    assert failed == BatchFailed(7, FailureCause.WORKER_LOST, "batch 7 did not end within 1 s")
    assert not session.is_open


# -- sessions end


@benched()
async def test_a_lost_worker_fails_its_batches_once_and_the_next_one_begins_with_its_models(bench: Bench) -> None:
    session = await bench.place()
    bench.run(7, 1)
    bench.run(8, 2)
    bench.take()
    session.end("connection reset")
    reason = "node n1: connection reset (n1a:1)"
    assert bench.take() == [
        PartitionLost("edge-0", reason, is_node_lost=True),
        BatchFailed(7, FailureCause.WORKER_LOST, reason),
        BatchFailed(8, FailureCause.WORKER_LOST, reason),
    ]
    await bench.wait()
    assert bench.take() == [READY]
    again = bench.peers["n1a:1"].session
    assert again is not session
    load = next(each for each in again.sent if isinstance(each, RemoteLoad))
    assert load.model.table == TABLE, "it need not be measured again"
    again.finish(7, rows(1))
    await bench.wait()
    assert not again.is_open, "an answer to a batch of an earlier session cannot be true"


@benched()
async def test_what_comes_late_over_an_ended_session_counts_for_nothing(bench: Bench) -> None:
    session = await bench.place()
    bench.run(7, 1)
    session.end("connection reset")
    bench.take()
    session.is_open = True
    session.finish(7, rows(1))
    await bench.wait()
    assert not any(isinstance(each, BatchCompleted) for each in bench.take())


@benched()
async def test_workers_of_a_node_whose_connections_break_together_are_lost_for_one_reason(bench: Bench) -> None:
    first, second = await bench.place("edge-0", "n1a:1"), await bench.place("edge-1", "n1b:1")
    await bench.place("edge-2", "n2a:1")
    bench.run(7, 1, slot="edge-0")
    bench.run(8, 2, slot="edge-1")
    bench.take()
    first.end("connection reset")
    assert bench.take() == [], "it may be the whole node"
    await bench.wait(0.01)
    second.end("connection reset")
    reason = "node n1: its 2 workers are gone: connection reset (n1a:1)"
    assert bench.take() == [
        PartitionLost("edge-0", reason, is_node_lost=True),
        PartitionLost("edge-1", reason, is_node_lost=True),
        BatchFailed(7, FailureCause.WORKER_LOST, reason),
        BatchFailed(8, FailureCause.WORKER_LOST, reason),
    ]


@benched()
async def test_a_worker_that_is_lost_alone_leaves_its_node(bench: Bench) -> None:
    first, second = await bench.place("edge-0", "n1a:1"), await bench.place("edge-1", "n1b:1")
    bench.take()
    first.end("connection reset")
    bench.run(7, 1)
    await bench.wait(0.06)
    reason = "node n1: connection reset (n1a:1)"
    lost, failed, *_ = bench.take()
    assert lost == PartitionLost("edge-0", reason)
    assert failed == BatchFailed(7, FailureCause.WORKER_LOST, reason), "it came in between"
    bench.run(8, 2, slot="edge-1")
    assert second.runs() == [8]


@benched()
async def test_workers_that_are_silent_are_lost_with_the_first_of_their_node(bench: Bench) -> None:
    first, second = await bench.place("edge-0", "n1a:1"), await bench.place("edge-1", "n1b:1")
    await bench.wait(2)
    bench.take()
    first.end("nothing has come for 2.2 s")
    assert bench.take() == [], "what the second one has sent may not have been read yet"
    await bench.wait(0.051)
    reason = "node n1: its 2 workers are gone: nothing has come for 2.2 s (n1a:1)"
    lost, also_lost, *_ = bench.take()
    assert [lost, also_lost] == [
        PartitionLost("edge-0", reason, is_node_lost=True),
        PartitionLost("edge-1", reason, is_node_lost=True),
    ]
    assert not second.is_open
    second.end("nothing has come for 2.2 s")
    await bench.wait(0.1)
    assert not any(isinstance(each, PartitionLost) for each in bench.take()), "it was lost already"


@benched()
async def test_a_loop_that_stood_still_makes_no_worker_silent(bench: Bench) -> None:
    first, second = await bench.place("edge-0", "n1a:1"), await bench.place("edge-1", "n1b:1")
    await bench.wait(2)
    bench.take()
    first.end("connection reset")
    second.say(Pong(1, bench.loop.clock(), 0))
    await bench.wait(0.06)
    assert [each.partition for each in bench.take() if isinstance(each, PartitionLost)] == ["edge-0"]
    assert second.is_open


@benched()
async def test_a_lost_worker_process_comes_back_over_the_same_session(bench: Bench) -> None:
    session = await bench.place()
    bench.run(7, 1)
    bench.run(8, 2)
    bench.take()
    session.say(RunRefused(7, "the worker died of signal 9", Fault.LOST))
    session.say(RunRefused(8, "the worker died of signal 9", Fault.LOST))
    session.say(WorkerLost("the worker died of signal 9"))
    await bench.wait()
    reason = "the worker died of signal 9"
    assert bench.take() == [
        PartitionLost("edge-0", reason),
        BatchFailed(7, FailureCause.WORKER_LOST, reason),
        BatchFailed(8, FailureCause.WORKER_LOST, reason),
    ]
    with pytest.raises(PartitionError, match="edge-0 has no worker"):
        bench.run(9, 3)
    session.say(WorkerBack(ServedWorker(78, (3,), Evidence(cores=(3,)))))
    await bench.wait()
    assert bench.take() == [READY]
    assert (bench.details[-1].worker, session.is_open) == (78, True)


@benched()
async def test_an_answer_of_the_process_before_counts_for_nothing_and_ends_no_session(bench: Bench) -> None:
    """Batches that the gateway sends before it hears of the loss run on the next process."""
    session = await bench.place()
    for batch in (7, 8, 9):
        bench.run(batch, batch)
    bench.take()
    session.say(RunRefused(7, "killed", Fault.LOST))
    session.say(WorkerLost("killed"))
    session.say(RunRefused(8, "killed", Fault.LOST))
    session.say(WorkerBack(ServedWorker(78, (3,), Evidence(cores=(3,)))))
    session.finish(9, rows(9))
    await bench.wait()
    lost = PartitionLost("edge-0", "killed")
    failed = [BatchFailed(batch, FailureCause.WORKER_LOST, "killed") for batch in (7, 8, 9)]
    assert bench.take() == [lost, *failed, READY]
    session.finish(9, rows(9))
    await bench.wait()
    assert not session.is_open, "each batch has one answer"


@benched()
async def test_a_worker_server_that_drains_gets_no_more_and_its_batches_end(bench: Bench) -> None:
    session = await bench.place()
    bench.run(7, 1)
    bench.run(8, 2)
    bench.take()
    session.say(Draining("the worker server is stopping"))
    session.say(RunRefused(8, "stopping", Fault.RESOURCES))
    session.finish(7, rows(1))
    await bench.wait()
    lost, refused, done = bench.take()
    assert lost == PartitionLost("edge-0", "node n1: the worker server is stopping")
    assert bench.details[-3].planned
    assert refused == BatchFailed(8, FailureCause.WORKER_LOST, "stopping"), "it runs elsewhere as it is"
    assert isinstance(done, BatchCompleted)
    session.end("the other end closed the session")
    await bench.wait()
    assert bench.take() == [READY], "another worker at the same address"


# -- the source takes workers away


@benched()
async def test_a_worker_that_is_given_up_ends_its_batches_before_its_session_ends(bench: Bench) -> None:
    session = await bench.place()
    bench.run(7, 1)
    bench.take()
    bench.source.placed("edge-0", None, "given up: gateway b asks")
    assert session.is_open
    await bench.wait(0.1)
    session.finish(7, rows(1))
    await bench.wait(0.1)
    lost, done = bench.take()
    assert lost == PartitionLost("edge-0", "given up: gateway b asks")
    assert isinstance(done, BatchCompleted)
    assert not session.is_open
    assert "lost edge-0" not in bench.source.heard


@benched()
async def test_the_loss_of_a_worker_that_is_given_up_is_reported_at_once(bench: Bench) -> None:
    await bench.place()
    bench.take()
    bench.source.placed("edge-0", None, "given up")
    assert bench.take() == [PartitionLost("edge-0", "given up")], "no batch may be sent there in between"
    with pytest.raises(WorkerGone, match="partition edge-0 has no worker"):
        bench.run(7, 1)


@benched()
async def test_batches_that_do_not_end_in_time_are_left_behind_with_a_worker_that_is_given_up(bench: Bench) -> None:
    session = await bench.place()
    bench.run(7, 1)
    bench.take()
    bench.source.placed("edge-0", None, "given up")
    await bench.wait(1.1)
    assert bench.take() == [PartitionLost("edge-0", "given up"), BatchFailed(7, FailureCause.WORKER_LOST, "given up")]
    assert not session.is_open


@benched()
async def test_a_slot_moves_to_another_address(bench: Bench) -> None:
    before = await bench.place()
    bench.run(7, 1)
    bench.take()
    after = await bench.place("edge-0", "n2a:1")
    bench.run(8, 2)
    assert (before.runs(), after.runs()) == ([7], [8])
    before.finish(7, rows(1))
    await bench.wait(0.1)
    assert [type(each) for each in bench.take()] == [PartitionLost, PartitionReady, BatchCompleted]
    assert not before.is_open
    load = next(each for each in after.sent if isinstance(each, RemoteLoad))
    assert load.model.table is None, "what was measured on one node says nothing about another"


@benched()
async def test_a_worker_that_is_placed_again_is_tried_at_once(bench: Bench) -> None:
    peer = bench.peers["n1a:1"]
    peer.refusal = SessionRefused("wrong key", "wrong key", retry=False)
    bench.source.placed("edge-0", "n1a:1", "")
    await bench.wait(0.1)
    peer.refusal = None
    await bench.place()
    assert bench.take()[-1] == READY
    session = peer.session
    await bench.place()
    assert peer.session is session, "one that is up stays"


# -- models


@benched()
async def test_models_come_and_go_and_the_next_worker_has_what_the_last_one_had(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    bench.executor.load(LoadModel("edge-0", "large:1"))
    bench.executor.unload(UnloadModel("edge-0", "small:1"))
    await bench.wait()
    assert bench.take() == [ModelLoaded("edge-0", "large:1", TABLE), ModelUnloaded("edge-0", "small:1")]
    session.end("connection reset")
    await bench.wait()
    assert loads(bench.peers["n1a:1"].session) == ["large:1"]
    assert bench.take()[-1] == PartitionReady("edge-0", {"large:1": TABLE}, node="n1")


@benched()
async def test_a_load_that_fails_is_reported_and_one_that_was_not_ordered_ends_the_session(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    bench.peers["n1a:1"].broken["large:1"] = "no room"
    bench.executor.load(LoadModel("edge-0", "large:1"))
    await bench.wait()
    assert bench.take() == [ModelLoadFailed("edge-0", "large:1", "no room")]
    session.loaded("other:1")
    await bench.wait()
    assert bench.take()[0] == PartitionLost("edge-0", "node n1: model other:1 is loaded, which was not ordered")


@pytest.mark.parametrize(
    "result",
    [
        LoadResult("large:1", LatencyTable(((1, 1 << 62),))),
        LoadResult("large:1", TABLE, memory=ModelMemory(-1)),
        LoadResult("large:1", TABLE, memory=ModelMemory(0, 1 << 60)),
    ],
)
def test_a_worker_that_says_what_is_true_of_no_model_is_lost(result: LoadResult) -> None:
    @benched()
    async def scenario(bench: Bench) -> None:
        session = await bench.place()
        bench.peers["n1a:1"].keeps = True
        bench.executor.load(LoadModel("edge-0", "large:1"))
        await bench.wait()
        bench.take()
        session.say(Loaded(result))
        await bench.wait()
        lost = bench.take()[0]
        assert isinstance(lost, PartitionLost)
        assert lost.reason.startswith("node n1: model large:1: expected ")

    scenario()


@benched()
async def test_the_model_that_a_lost_worker_was_loading_is_named(bench: Bench) -> None:
    bench.peers["n1a:1"].keeps = True
    session = await bench.place()
    session.end("connection reset")
    (lost,) = bench.take()
    assert isinstance(lost, PartitionLost)
    assert bench.details[-1].failed == {
        "small:1": "the worker of edge-0 was lost: node n1: connection reset (n1a:1)",
    }


@benched()
async def test_a_worker_gets_the_files_that_it_asks_for(bench: Bench) -> None:
    session = await bench.place()
    session.say(FileWanted(3, "digest", "small/1/model.onnx", 0, 10))
    await bench.wait()
    assert session.sent[-1] == FilePart(3, b"small/1/model.onnx")


@benched()
async def test_orders_to_a_partition_without_a_worker_are_not_kept(bench: Bench) -> None:
    bench.executor.load(LoadModel("edge-0", "large:1"))
    bench.executor.unload(UnloadModel("edge-0", "small:1"))
    assert loads(await bench.place()) == ["small:1"]


@benched()
async def test_models_are_asked_whether_they_are_ready(bench: Bench) -> None:
    session = await bench.place()
    await bench.place("edge-1", "n1b:1")
    assert bench.executor.ask_ready(5, "small:1") == {"edge-0", "edge-1"}
    assert bench.executor.ask_ready(6, "large:1") == frozenset()
    assert session.sent[-1] == AskModelReady(5, "small:1")
    session.say(ModelReadiness(5, False))
    await bench.wait()
    assert bench.said_ready == [("edge-0", 5, False)]


# -- links


@benched()
async def test_the_way_to_a_node_is_reported_when_it_was_measured(bench: Bench) -> None:
    session = await bench.place()
    bench.take()
    session.say(Pong(1, bench.loop.clock() - 2 * MS, MS // 2))
    await bench.wait()
    assert bench.take() == [LinkMeasured("n1", 3 * MS // 2)]
    session.say(Pong(2, bench.loop.clock() - MS, 0))
    await bench.wait()
    assert bench.take() == [], "once a second at most"
    await bench.wait(1)
    session.say(Pong(3, bench.loop.clock() - 9 * MS, 0))
    await bench.wait()
    assert bench.take() == [LinkMeasured("n1", MS)]


@benched()
async def test_draining_ends_all_sessions(bench: Bench) -> None:
    session = await bench.place()
    bench.peers["n1b:1"].refusal = PartitionError("cannot be reached")
    bench.source.placed("edge-1", "n1b:1", "")
    await bench.wait(0.1)
    await bench.executor.drain()
    assert not session.is_open
    assert bench.source.heard[-1] == "close"
