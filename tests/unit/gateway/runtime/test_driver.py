import asyncio

import pytest

from sluice.batcher.interface.decisions import DispatchBatch, ReleaseReason
from sluice.batcher.interface.events import BatchCompleted, PartitionLost, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.partitions.inventory import ProcessDetails
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.submission import Submission
from sluice.models.errors import NotFoundError, PartitionError, RejectedError, RequestError, WorkerGone
from sluice.models.units import NS_PER_MS, NS_PER_S
from tests.support.gateway.runtime_bench import READY, Bench, FullDisk, Refusing, outcomes
from tests.support.gateway.timed_executor import TimedExecutor
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual


def test_requests_of_one_loop_iteration_share_a_batch() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.sleep(0.001)
        futures = [bench.submit()[1] for _ in range(5)]
        answers = await asyncio.gather(*futures)
        assert [answer.outcome for answer in answers] == [Outcome.COMPLETED] * 5
        (batch,) = bench.steps.batches()
        assert (batch.rows, batch.partition) == (5, "cpu0")
        assert loop.now_ns == 5 * NS_PER_MS  # arrival at 1 ms, a batch of up to 8 takes 4 ms

    run_virtual(main)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(MemoryError, Outcome.FAILED_BACKEND), (PartitionError, Outcome.FAILED_UNAVAILABLE)],
)
def test_a_batch_that_cannot_be_started_is_bisected_and_the_rest_is_answered(
    error: type[Exception], outcome: Outcome
) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Refusing)
        bench.executor.limit = 3  # type: ignore[attr-defined]
        bench.executor.error = error  # type: ignore[attr-defined]
        futures = [bench.submit(rows)[1] for rows in (1, 2, 4)]
        small, medium, large = await asyncio.gather(*futures)
        assert (small.outcome, medium.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
        assert large.outcome is outcome
        assert large.reason == "the batch could not be started: no room for the inputs"

    run_virtual(main)


class Leaving(TimedExecutor):
    """Reports the loss of the worker in the moment in which it gets the first batch."""

    left = False

    def run(self, batch: DispatchBatch) -> None:
        if not self.left:
            self.left = True
            self._report(PartitionLost(batch.partition, "given up"))
            raise WorkerGone(f"partition {batch.partition} has no worker")
        super().run(batch)


def test_a_batch_for_a_worker_that_has_just_left_waits_for_the_next_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Leaving)
        future = bench.submit(2)[1]
        await asyncio.sleep(0.01)
        assert not future.done()
        bench.runtime.report(READY)
        assert (await future).outcome is Outcome.COMPLETED
        assert [batch.rows for batch in bench.steps.batches()] == [2, 2], "it ran as it was"

    run_virtual(main)


def test_an_answer_that_cannot_be_put_together_fails_its_request_alone() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Refusing)
        bench.executor.torn = True  # type: ignore[attr-defined]
        answer = await bench.submit()[1]
        assert answer.outcome is Outcome.FAILED_BACKEND
        bench.executor.torn = False  # type: ignore[attr-defined]
        assert (await bench.submit()[1]).outcome is Outcome.COMPLETED

    run_virtual(main)


def test_answers_that_cannot_be_joined_fail_their_request_alone() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Refusing)
        bench.executor.unjoined = (2,)  # type: ignore[attr-defined]
        futures = [bench.submit(pipeline="ensemble:1")[1] for _ in range(3)]
        before, failed, after = await asyncio.gather(*futures)
        assert (before.outcome, after.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
        assert failed.outcome is Outcome.FAILED_BACKEND
        assert failed.reason == "stage 'vote': answers of the shapes [1, 2], [1, 3] cannot be joined"
        assert not bench.runtime.failed.is_set()
        assert bench.metrics.meters.pipeline("ensemble:1").stage_rows == [3, 3, 2, 2]

    run_virtual(main)


def test_a_request_over_the_memory_limit_by_itself_is_refused_for_good() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Refusing)
        assert (await bench.submit(8, memory_bytes=7_000)[1]).outcome is Outcome.COMPLETED
        with pytest.raises(
            RequestError,
            match="the tensors of the request need 15001 bytes, but the limit for all requests of a pipeline together "
            "is 15000 bytes",  # of 20000, of which a fourth is kept for the other pipeline
        ):
            bench.submit(8, memory_bytes=7_001)
        assert bench.runtime.in_flight == 0

    run_virtual(main)


def test_a_journal_that_cannot_be_written_is_given_up_and_serving_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, steps=FullDisk)
        for _ in range(3):
            assert (await bench.submit()[1]).outcome is Outcome.COMPLETED
        assert len(bench.steps.steps) == 3

    run_virtual(main)
    (record,) = caplog.records
    assert (record.levelname, record.message) == (
        "ERROR",
        "the journal cannot be written, so nothing is recorded from here on: [Errno 28] No space left on device",
    )


def test_a_request_can_be_cancelled_before_it_was_taken_in() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.sleep(0.001)
        cancelled, future = bench.submit()
        _, other = bench.submit()
        bench.runtime.cancel(cancelled)
        assert (await future).outcome is Outcome.CANCELLED_CLIENT
        assert (await other).outcome is Outcome.COMPLETED
        (batch,) = bench.steps.batches()
        assert [member.request for member in batch.members] == [2]

    run_virtual(main)


def test_a_cancelled_request_is_settled_at_once_and_its_batch_ends_without_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        request, future = bench.submit()
        _, other = bench.submit()
        await asyncio.sleep(0.001)
        future.cancel()
        bench.runtime.cancel(request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert outcomes(bench) == {Outcome.CANCELLED_CLIENT: 1}
        assert (await other).outcome is Outcome.COMPLETED
        bench.runtime.cancel(request)
        await asyncio.sleep(0.01)
        assert outcomes(bench) == {Outcome.CANCELLED_CLIENT: 1, Outcome.COMPLETED: 1}

    run_virtual(main)


def test_an_impossible_deadline_is_refused_at_once_with_a_time_to_come_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.sleep(0.001)
        _, probe = bench.submit(slo_ms=1)
        answer = await bench.submit(slo_ms=1)[1]
        assert not probe.done()  # one is let through, in case the estimate is wrong
        assert answer.outcome is Outcome.REJECTED_DEADLINE
        assert answer.reason
        assert answer.retry_after_s == 1
        assert loop.now_ns == 1 * NS_PER_MS

    run_virtual(main)


def test_a_drain_waits_for_what_is_in_flight_and_refuses_what_comes() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        _, future = bench.submit()
        await asyncio.sleep(0.001)
        drained = asyncio.create_task(bench.runtime.drain(10.0))
        await asyncio.sleep(0)
        _, late = bench.submit()
        await drained
        assert loop.now_ns < 10 * NS_PER_S
        assert (await future).outcome is Outcome.COMPLETED
        assert (await late).outcome is Outcome.REJECTED_DRAINING
        assert bench.runtime.in_flight == 0

    run_virtual(main)


def test_what_comes_when_a_drain_has_just_ended_is_refused_and_not_given_up() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await bench.runtime.drain(10.0)
        _, late = bench.submit()
        assert bench.runtime.close() == 0
        answer = await late
        assert (answer.outcome, answer.reason) == (Outcome.REJECTED_DRAINING, "the server is stopping")

    run_virtual(main)


def test_closing_answers_what_is_still_open_and_refuses_more() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        _, future = bench.submit()
        await asyncio.sleep(0.001)
        await bench.runtime.drain(0.0005)
        assert bench.runtime.in_flight == 1
        assert bench.runtime.close() == 1
        answer = await future
        assert (answer.outcome, answer.reason) == (
            Outcome.FAILED_UNAVAILABLE,
            "the server stopped before the request was done",
        )
        with pytest.raises(RejectedError, match="the server is stopping"):
            bench.submit()

    run_virtual(main)


def test_when_the_scheduler_fails_open_requests_are_answered_and_the_failure_is_reported() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        _, future = bench.submit()
        bench.runtime.report(BatchCompleted(99, 0, 1))  # a batch that nobody ordered
        answer = await future
        assert answer.outcome is Outcome.FAILED_UNAVAILABLE
        assert bench.runtime.failed.is_set()
        with pytest.raises(RejectedError, match="the server is stopping"):
            bench.submit()

    run_virtual(main)


def test_every_decision_to_run_and_every_row_is_counted() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.gather(bench.submit(3)[1], bench.submit(2)[1])
        meter = bench.metrics.meters.pipeline("mlp:1")
        assert meter.stage_rows == [5]
        assert meter.attainment == 1.0
        assert b'sluice_batches_total{model="mlp:1",partition="cpu0",reason="idle"} 1.0' in bench.metrics.exposition()
        assert bench.steps.batches()[0].reason is ReleaseReason.IDLE

    run_virtual(main)


def test_what_a_request_went_through_is_remembered_and_its_cost_shared_by_rows() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.sleep(0.001)
        await asyncio.gather(bench.submit(3)[1], bench.submit(1)[1])
        trace = bench.runtime.traces.find("sluice-2")
        (run,) = trace.runs
        assert (trace.outcome, trace.arrived_ns, trace.ended_ns) == (Outcome.COMPLETED, 1 * NS_PER_MS, 5 * NS_PER_MS)
        assert (run.dispatched_ns, run.started_ns, run.ended_ns, run.reported_ns) == tuple(
            time * NS_PER_MS for time in (1, 1, 5, 5)
        )
        assert run.batch is bench.steps.batches()[0]
        assert run.cost == pytest.approx(0.004)  # a second costs 1
        exposition = bench.metrics.exposition()
        assert b'sluice_cost_total{pipeline="mlp:1"} 0.004' in exposition
        assert b'sluice_cost_per_1000_good_requests{pipeline="mlp:1"} 2.0' in exposition
        assert b'sluice_partition_busy_seconds_total{partition="cpu0"} 0.004' in exposition

    run_virtual(main)


def test_a_batch_that_failed_is_remembered_before_the_ones_that_repeat_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Refusing)
        bench.executor.limit = 1  # type: ignore[attr-defined]
        await asyncio.gather(bench.submit()[1], bench.submit()[1])
        runs = bench.runtime.traces.find("sluice-1").runs
        assert [(run.batch.rows, run.failed) for run in runs] == [(2, "backend"), (1, "")]

    run_virtual(main)


def test_no_more_requests_are_remembered_than_set() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, trace_requests=3)
        for _ in range(5):
            await bench.submit()[1]
        assert [bench.runtime.traces.find(f"sluice-{number}").outcome for number in (3, 4, 5)] == [
            Outcome.COMPLETED
        ] * 3
        with pytest.raises(NotFoundError):
            bench.runtime.traces.find("sluice-2")

    run_virtual(main)


def test_the_most_that_a_request_may_cost_reaches_the_scheduler() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        options = RequestOptions((), 1, "", 0, NS_PER_S, "r", 0.5)
        await bench.runtime.submit("mlp:1", {}, options).future
        arrivals = [event for _, event, _ in bench.steps.steps if isinstance(event, RequestArrived)]
        assert [arrival.max_cost for arrival in arrivals] == [0.5]

    run_virtual(main)


def test_a_dropped_answer_gives_its_memory_back_once() -> None:
    released: list[int] = []
    answer = Answer(Outcome.COMPLETED, outputs={}, release=lambda: released.append(1))
    answer.release()
    answer.release()
    del answer
    assert released == [1]
    dropped = Answer(Outcome.COMPLETED, outputs={}, release=lambda: released.append(2))
    del dropped
    assert released == [1, 2]


def test_what_the_executor_reports_of_partitions_reaches_the_inventory_and_the_scheduler() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        assert bench.inventory.holders("mlp:1") == ["cpu0"]  # at once, before the scheduler's turn
        await asyncio.sleep(0)
        lost = PartitionLost("cpu0", "killed by SIGKILL")
        bench.runtime.report(lost, ProcessDetails(failed={"big:1": "it was loading"}))
        assert (bench.inventory.is_up("cpu0"), bench.inventory.failed) == (False, {"big:1": "it was loading"})
        await asyncio.sleep(0)
        assert [event for _, event, _ in bench.steps.steps if isinstance(event, PartitionLost)] == [lost]

    run_virtual(main)


def held(bench: Bench, slo_ms: int = 1000) -> Submission:
    options = RequestOptions((), 1, "", 0, slo_ms * NS_PER_MS)
    submission = bench.runtime.hold("mlp:1", options, bench.loop.now_ns)
    assert submission is not None
    return submission


def test_a_held_request_is_answered_with_the_outputs_of_another_or_runs_after_all() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        first, late, second = held(bench), held(bench, slo_ms=1), held(bench)
        await asyncio.sleep(0.002)
        assert bench.steps.batches() == []
        for each in (first, late):
            bench.runtime.answer_held(each, {})
        options = RequestOptions((), 1, "", 0, 1000 * NS_PER_MS)
        bench.runtime.run_held(second, {}, options, "", None)
        answers = [(await each.future) for each in (first, late, second)]
        assert [each.outcome for each in answers] == [Outcome.COMPLETED, Outcome.COMPLETED_LATE, Outcome.COMPLETED]
        assert answers[0].reason == "it was answered with an equal request that was under way"
        (batch,) = bench.steps.batches()
        assert batch.members[0].request == second.request
        assert second.trace.arrival.deadline_ns == 1000 * NS_PER_MS
        assert bench.runtime.in_flight == 0

    run_virtual(main)


def test_a_held_request_is_cancelled_at_once_and_does_not_run_then() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        submission = held(bench)
        future = submission.future
        bench.runtime.cancel(submission.request)
        assert (await future).outcome is Outcome.CANCELLED_CLIENT
        bench.runtime.run_held(submission, {}, RequestOptions((), 1, "", 0, NS_PER_S), "", None)
        bench.runtime.answer_held(submission, {})
        await asyncio.sleep(0.01)
        assert bench.steps.batches() == []
        assert outcomes(bench) == {Outcome.CANCELLED_CLIENT: 1}

    run_virtual(main)


def test_a_held_request_that_runs_after_all_can_still_be_cancelled_at_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        await asyncio.sleep(0.001)
        submission = held(bench)
        _, other = bench.submit()
        await other
        future = submission.future
        bench.runtime.run_held(submission, {}, RequestOptions((), 1, "", 0, NS_PER_S), "", None)
        bench.runtime.cancel(submission.request)
        assert (await future).outcome is Outcome.CANCELLED_CLIENT
        assert [[each.request for each in batch.members] for batch in bench.steps.batches()] == [[2]]

    run_virtual(main)


def test_requests_are_held_while_their_inputs_fit_into_the_memory_of_a_pipeline() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        large = RequestOptions((), 1, "", 15_000, NS_PER_S)  # all that a pipeline may have
        first = bench.runtime.hold("mlp:1", large, loop.now_ns)
        assert first is not None
        assert bench.runtime.hold("mlp:1", large, loop.now_ns) is None
        bench.runtime.answer_held(first, {})
        assert bench.runtime.hold("mlp:1", large, loop.now_ns) is not None

    run_virtual(main)


def test_a_server_that_stops_answers_what_is_held() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        submission = held(bench)
        future = submission.future
        assert bench.runtime.close() == 1
        assert (await future).outcome is Outcome.FAILED_UNAVAILABLE
        bench.runtime.answer_held(submission, {})
        assert bench.runtime.hold("mlp:1", RequestOptions((), 1, "", 0, NS_PER_S), 0) is None

    run_virtual(main)
