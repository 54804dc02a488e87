"""A view of what a partition is to run next, for people: reads the plan of places and changes nothing."""

from typing import NamedTuple

from sluice.batcher.state import PartitionState


class UpcomingBatch(NamedTuple):
    """A batch that a partition has yet to start: of `rows` so far, expected to start at `start_ns`."""

    model: str
    start_ns: int
    length_ns: int
    rows: int


def next_batches(partition: PartitionState, now_ns: int, most: int) -> list[UpcomingBatch]:
    """The next batches of a partition, at most `most`: those that its worker holds, then the planned ones. O(most)."""
    held = partition.batches[1 : most + 1]
    start_ns = partition.start_ns(now_ns) - sum(batch.expected_ns for batch in held)
    found: list[UpcomingBatch] = []
    for batch in held:
        found.append(UpcomingBatch(batch.queue_key[0], start_ns, batch.expected_ns, batch.rows))
        start_ns += batch.expected_ns
    for planned in partition.planned[: most - len(found)]:
        length_ns = int(planned.length_ns * partition.slowdown)
        found.append(UpcomingBatch(planned.queue_key[0], start_ns, length_ns, round(planned.rows)))
        start_ns += length_ns + int(partition.between_ns * partition.slowdown)
    return found
