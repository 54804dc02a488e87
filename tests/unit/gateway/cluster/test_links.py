"""The way to a node, as messages and tensors show it."""

from sluice.gateway.cluster.links import LARGE_BYTES, LONGEST_ROUND_TRIP_NS, NodeLink

MS = 1_000_000


def test_the_round_trip_is_the_quickest_of_late() -> None:
    link = NodeLink()
    for round_trip in (3 * MS, 2 * MS, 9 * MS):
        link.answered(round_trip)
    assert link.round_trip_ns == 2 * MS
    for _ in range(8):
        link.answered(5 * MS)
    assert link.round_trip_ns == 5 * MS


def test_a_round_trip_is_no_longer_than_a_minute_whatever_a_worker_says() -> None:
    link = NodeLink()
    link.answered(1 << 70)
    assert link.round_trip_ns == LONGEST_ROUND_TRIP_NS
    link.answered(-(1 << 70))
    assert link.round_trip_ns == 0


def test_the_bandwidth_is_that_of_large_tensors_without_the_round_trip() -> None:
    link = NodeLink()
    link.answered(2 * MS)
    link.transferred(1_000_000, 12 * MS)
    assert link.bytes_per_s == 100_000_000
    link.transferred(LARGE_BYTES - 1, 12 * MS)
    link.transferred(1_000_000, 2 * MS)
    assert link.bytes_per_s == 100_000_000, "neither says anything about the bandwidth"


def test_a_slow_transfer_among_many_changes_little() -> None:
    link = NodeLink()
    for took in (10, 10, 1000, 10):
        link.transferred(1_000_000, took * MS)
    assert link.bytes_per_s == 100_000_000


def test_tensors_are_on_their_way_for_half_a_round_trip_and_their_bytes() -> None:
    link = NodeLink()
    assert link.one_way_ns(1_000_000) == 0, "nothing is known"
    link.answered(2 * MS)
    assert link.one_way_ns(1_000_000) == MS
    link.transferred(1_000_000, 12 * MS)
    assert link.one_way_ns(500_000) == 6 * MS
