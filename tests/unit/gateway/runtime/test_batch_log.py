"""The counts of batches that have ended."""

from asyncio import new_event_loop

from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, FailureCause, RequestArrived
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.runtime.batch_log import BatchLog
from sluice.gateway.runtime.submission import Submission
from tests.support.scheduling.builders import MS, S


def test_the_rows_of_a_stage_count_once_where_they_run_again_elsewhere() -> None:
    """Batch 3 has the second stage of the request, batch 1 failed, and batch 4 was to be quicker than batch 2."""
    metrics = ServerMetrics({"p": ["small", "large"]}, ["cpu0", "cpu1"], tuple, lambda: 0)
    log = BatchLog(metrics.meters, lambda partition: 1.0)

    trace = Trace("", RequestArrived(7, "p", 5, S), 0, ())
    loop = new_event_loop()
    submission = Submission(7, loop, trace, metrics.meters.pipeline("p"))
    loop.close()
    for number, stage, partition in ((1, 0, "cpu0"), (2, 0, "cpu0"), (3, 1, "cpu1"), (4, 0, "cpu1")):
        model = ("m:1", "n:1")[stage]
        members = (Member(7, stage, 5, None),)
        log.dispatched(DispatchBatch(number, partition, model, 5, members, ReleaseReason.IDLE, MS), [submission], 0, "")
        if number == 1:
            log.ended(BatchFailed(number, FailureCause.WORKER_LOST, "killed"), MS)
        else:
            log.ended(BatchCompleted(number, 0, MS), MS)
    text = metrics.exposition().decode()
    assert 'sluice_stage_rows_total{pipeline="p",stage="small"} 5.0' in text
    assert 'sluice_stage_rows_total{pipeline="p",stage="large"} 5.0' in text
    assert 'sluice_cost_total{pipeline="p"} 3000000.0' in text


def test_batches_that_complete_are_reported_while_somebody_watches() -> None:
    metrics = ServerMetrics({"p": ["only"]}, ["cpu0"], dict, lambda: 0)
    log = BatchLog(metrics.meters, lambda partition: 1.0)
    seen: list[int] = []

    def run(number: int, *, fails: bool = False) -> None:
        log.dispatched(DispatchBatch(number, "cpu0", "m:1", 1, (), ReleaseReason.IDLE, MS), [], 0, "")
        failed = BatchFailed(number, FailureCause.WORKER_LOST, "killed")
        log.ended(failed if fails else BatchCompleted(number, 0, MS), MS)

    run(1)
    log.watch = lambda batch: seen.append(batch.batch.batch)
    run(2)
    run(3, fails=True)
    run(4)
    log.watch = None
    run(5)
    assert seen == [2, 4]
