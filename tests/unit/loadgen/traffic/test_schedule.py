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
