import numpy as np

from sluice.loadgen.traffic.schedule import Schedule


def test_the_digest_is_that_of_the_little_endian_columns() -> None:
    schedule = Schedule(np.array([1, 2], np.int64), np.array([0, 3], np.int64))
    # sha256sum of the 32 bytes.
    assert schedule.digest == "45a9157e73c20b7d027d0c3d494e17ab9d957322deb326fff3791607f5943417"


def test_streams_cancellations_and_groups_change_the_digest_only_where_there_are_any() -> None:
    due_ns, sample = np.array([1, 2], np.int64), np.array([0, 3], np.int64)
    plain = Schedule(due_ns, sample)
    assert plain.stream.tolist() == [0, 0]
    assert plain.digest == Schedule(due_ns, sample, np.zeros(2, np.uint16)).digest
    others = [
        Schedule(due_ns, sample, np.array([0, 1], np.uint16)),
        Schedule(due_ns, sample, cancel_ns=np.array([-1, 5], np.int64)),
        Schedule(due_ns, sample, group=2),
    ]
    assert len({plain.digest, *(schedule.digest for schedule in others)}) == 4


def test_parts_share_the_queries_in_turn_and_keep_groups_together() -> None:
    columns = np.arange(10, dtype=np.int64)
    plain = Schedule(columns * 7, columns, cancel_ns=columns - 1)
    assert [part.sample.tolist() for part in (plain.part(0, 3), plain.part(1, 3), plain.part(2, 3))] == [
        [0, 3, 6, 9],
        [1, 4, 7],
        [2, 5, 8],
    ]
    part = plain.part(1, 3)
    assert part.due_ns.tolist() == [7, 28, 49]
    assert part.cancel_ns is not None
    assert part.cancel_ns.tolist() == [0, 3, 6]
    grouped = Schedule(columns, columns, group=2).part(1, 2)
    assert grouped.sample.tolist() == [2, 3, 6, 7]
    assert grouped.group == 2
