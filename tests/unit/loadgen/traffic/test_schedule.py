import numpy as np
import pytest

from sluice.loadgen.traffic.schedule import Schedule, server_schedule
from sluice.models.errors import ConfigError


def test_the_same_seed_gives_the_same_schedule() -> None:
    first = server_schedule(100.0, 5.0, None, 10, each_once=False, seed=42)
    again = server_schedule(100.0, 5.0, None, 10, each_once=False, seed=42)
    other = server_schedule(100.0, 5.0, None, 10, each_once=False, seed=43)
    assert first.digest == again.digest != other.digest


def test_the_number_of_samples_does_not_move_the_arrivals() -> None:
    few = server_schedule(100.0, 5.0, None, 10, each_once=False, seed=42)
    many = server_schedule(100.0, 5.0, None, 1000, each_once=False, seed=42)
    assert few.due_ns.tolist() == many.due_ns.tolist()


def test_samples_are_drawn_uniformly_with_replacement() -> None:
    schedule = server_schedule(1000.0, None, 100_000, 10, each_once=False, seed=5)
    counts = np.bincount(schedule.sample, minlength=10)
    assert len(counts) == 10
    # Six standard deviations around 10 000.
    assert ((counts > 9430) & (counts < 10_570)).all()


def test_each_once_sends_every_sample_once_shuffled() -> None:
    schedule = server_schedule(1000.0, None, None, 899, each_once=True, seed=5)
    assert sorted(schedule.sample.tolist()) == list(range(899))
    assert schedule.sample.tolist() != list(range(899))


def test_each_once_is_cut_by_a_number_of_queries() -> None:
    schedule = server_schedule(1000.0, None, 5, 899, each_once=True, seed=5)
    assert len(set(schedule.sample.tolist())) == len(schedule) == 5


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


def test_a_schedule_without_queries_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no query falls into 0\.001 s"):
        server_schedule(0.1, 0.001, None, 10, each_once=False, seed=1)


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
