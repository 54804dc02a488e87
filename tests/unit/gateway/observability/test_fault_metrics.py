"""Metrics of batches that failed, of batch limits and of partitions in quarantine."""

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import BatchFailed, FailureCause
from sluice.gateway.observability.fault_metrics import FaultMetrics
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.runtime.batch_log import BatchLog
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, arrival, model, serving, spec_of, step

FLAT = LatencyTable.from_ms({1: 1, 8: 1.3})


def test_what_fails_is_counted_and_what_comes_of_it_is_shown() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1")), FLAT)
    metrics = ServerMetrics({"m:1": ["m"]}, ["cpu0", "cpu1"], tuple, lambda: 0)
    quarantined = {"cpu1"}
    metrics.include(FaultMetrics(scheduler, ["cpu0", "cpu1"], lambda: quarantined))
    runs = BatchLog(metrics.meters, lambda partition: 0.0)
    (batch,) = step(scheduler, 0, *(arrival(number, 9 * MS) for number in range(8)))
    assert isinstance(batch, DispatchBatch)
    runs.dispatched(batch, [], 0, "")
    failed = BatchFailed(batch.batch, FailureCause.OUT_OF_MEMORY, "no memory")
    runs.ended(failed, MS)
    step(scheduler, MS, failed)
    text = metrics.exposition().decode()
    assert 'sluice_batch_failures_total{cause="out_of_memory",model="m:1",partition="cpu0"} 1.0' in text
    assert 'sluice_batch_ceiling_rows{kind="cpu1",model="m:1"} 4.0' in text
    assert 'sluice_partition_quarantined{partition="cpu0"} 0.0' in text
    assert 'sluice_partition_quarantined{partition="cpu1"} 1.0' in text
