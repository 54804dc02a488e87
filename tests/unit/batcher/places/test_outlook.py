"""The next batches of a partition, for people."""

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.places.outlook import UpcomingBatch, next_batches
from tests.support.scheduling.builders import MS, ONE, arrival, model, serving, spec_of, step


def test_what_a_worker_holds_comes_first_and_then_what_is_planned() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    for number in range(1, 6):
        step(scheduler, 0, arrival(number, 1000 * MS))
    partition = scheduler.dispatcher.fleet.partitions["cpu0"]
    assert next_batches(partition, 0, 9) == [
        UpcomingBatch("m:1", MS * number, MS, 1) for number in range(1, 1 + len(partition.planned))
    ]
    assert len(partition.planned) == 4
    step(scheduler, MS - partition.hand_off_ns)  # the second batch goes to the worker just before the first one ends
    assert [len(partition.batches), len(partition.planned)] == [2, 3]
    found = next_batches(partition, MS // 2, 2)
    assert found == [UpcomingBatch("m:1", MS, MS, 1), UpcomingBatch("m:1", 2 * MS, MS, 1)]


def test_a_partition_without_work_has_none() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=[PartitionConfig("cpu0", "cpu1")]), ONE)
    assert next_batches(scheduler.dispatcher.fleet.partitions["cpu0"], 0, 3) == []
