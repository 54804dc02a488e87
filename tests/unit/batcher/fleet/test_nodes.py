"""Partitions on nodes: who is equal to whom, and what the partitions of a node learn together."""

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.nodes import SPARE_NODES
from sluice.batcher.fleet.speed import decay_corrections, observe_hand_off
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.events import LinkMeasured, PartitionReady
from sluice.batcher.state import LOCAL, PartitionState
from tests.support.scheduling.builders import MS, ONE, US, S, model, spec_of

NAMES = ("p0", "p1", "p2", "p3")
GBIT = 125_000_000


def fleet_of(**nodes: str) -> Fleet:
    """Partitions of one kind that are up; those that `nodes` does not name are on the gateway's own machine."""
    fleet = Fleet(spec_of([model("m:1")], partitions=NAMES, limits=Limits(hand_off_ns=100 * US)))
    for name in NAMES:
        fleet.ready(PartitionReady(name, {"m:1": ONE}, node=nodes.get(name, "")))
    return fleet


def groups(fleet: Fleet) -> list[list[str]]:
    return sorted(sorted(each.name for each in group.partitions.values()) for group in fleet.groups)


def measure(fleet: Fleet, node: str, round_trip_ns: int, bytes_per_s: int = 0, times: int = 3) -> None:
    for _ in range(times):
        fleet.link_measured(LinkMeasured(node, round_trip_ns, bytes_per_s))


def run(partition: PartitionState, took_ns: int, times: int, way_ns: int = 0) -> None:
    """Batches one by one, each of which is handed over and back in `took_ns`."""
    for _ in range(times):
        at_ns = partition.last_end_ns + S
        observe_hand_off(partition, at_ns, at_ns, at_ns + MS, at_ns + MS + took_ns, way_ns)


def test_a_partition_on_another_node_is_no_equal_of_a_local_one() -> None:
    assert groups(fleet_of(p1="a", p2="b")) == [["p0", "p3"], ["p1", "p2"]]


def test_partitions_on_links_of_other_names_are_no_equals() -> None:
    fleet = Fleet(spec_of([model("m:1")], partitions=NAMES))
    for name, link in zip(NAMES, ("10g", "1g", "10g", "1g"), strict=True):
        fleet.ready(PartitionReady(name, {"m:1": ONE}, node=f"of {name}", link=link))
    assert groups(fleet) == [["p0", "p2"], ["p1", "p3"]]


def test_a_partition_that_comes_up_on_a_farther_node_is_as_far() -> None:
    fleet = Fleet(spec_of([model("m:1")], partitions=("p0",)))
    fleet.ready(PartitionReady("p0", {"m:1": ONE}, node="near"))
    measure(fleet, "far", 200 * US)
    fleet.lost("p0", S)
    fleet.ready(PartitionReady("p0", {"m:1": ONE}, node="far"))
    assert [group.round_trip_ns for group in fleet.groups] == [200 * US]
    assert fleet.models["m:1"].nearest_ns == 200 * US


def test_a_node_whose_link_is_slower_has_other_equals_once_that_was_measured_three_times() -> None:
    fleet = fleet_of(p0="a", p1="b", p2="b", p3="a")
    for node in ("a", "b"):
        measure(fleet, node, 200 * US, 10 * GBIT)
    assert groups(fleet) == [["p0", "p1", "p2", "p3"]]
    measure(fleet, "b", 200 * US, GBIT, times=2)
    assert groups(fleet) == [["p0", "p1", "p2", "p3"]]
    measure(fleet, "b", 200 * US, GBIT, times=1)
    assert groups(fleet) == [["p0", "p3"], ["p1", "p2"]]


def test_a_node_that_is_far_away_has_other_equals() -> None:
    fleet = fleet_of(p0="a", p1="b", p2="b", p3="a")
    measure(fleet, "a", 200 * US)
    measure(fleet, "b", 40 * MS)
    assert groups(fleet) == [["p0", "p3"], ["p1", "p2"]]
    measure(fleet, "b", 300 * US)
    assert groups(fleet) == [["p0", "p1", "p2", "p3"]]


def test_what_is_measured_counts_from_the_first_time_on_and_small_changes_do_not() -> None:
    fleet = fleet_of(p0="a", p1="a", p2="a", p3="a")
    assert fleet.link_measured(LinkMeasured("a", 200 * US, GBIT))[0]
    m = fleet.models["m:1"]
    assert fleet.groups[0].way_ns(m, 1) == fleet.partitions["p2"].way_ns(m, 1) == 200 * US == m.nearest_ns
    assert not fleet.link_measured(LinkMeasured("a", 185 * US, GBIT))[0]
    assert fleet.partitions["p2"].round_trip_ns == 200 * US


def test_a_worker_that_comes_up_on_another_node_has_the_way_there() -> None:
    fleet = fleet_of(p0="a", p1="b", p2="b", p3="b")
    measure(fleet, "b", 300 * US)
    fleet.lost("p0", S)
    fleet.ready(PartitionReady("p0", {"m:1": ONE}, node="b"))
    assert fleet.partitions["p0"].round_trip_ns == 300 * US
    assert groups(fleet) == [["p0", "p1", "p2", "p3"]]
    fleet.ready(PartitionReady("p0", {"m:1": ONE}))
    assert (fleet.partitions["p0"].round_trip_ns, fleet.partitions["p0"].link) == (0, LOCAL)


def test_the_partitions_of_a_node_share_the_hand_off_time_that_they_learn() -> None:
    """A twentieth of each batch counts: 100 us, and 19 batches of 1 ms, capped at eight times what is known."""
    fleet = fleet_of(p0="a", p1="a", p2="b")
    run(fleet.partitions["p0"], MS, 19)
    learned_ns = fleet.partitions["p0"].hand_off_ns
    assert 600 * US < learned_ns < 700 * US
    assert fleet.partitions["p1"].hand_off_ns == learned_ns
    assert (fleet.partitions["p2"].hand_off_ns, fleet.partitions["p3"].hand_off_ns) == (100 * US, 100 * US)


def test_a_partition_that_is_slower_than_its_node_keeps_its_own_hand_off_time() -> None:
    """Of two that take 2 ms and 200 us, the node has something between; both differ from it by more than a half."""
    fleet = fleet_of(p0="a", p1="a")
    for _ in range(100):
        run(fleet.partitions["p0"], 2 * MS, 1)
        run(fleet.partitions["p1"], 200 * US, 1)
    assert fleet.partitions["p0"].hand_off_ns > 1900 * US
    assert fleet.partitions["p1"].hand_off_ns < 210 * US


def test_what_the_way_takes_is_no_hand_off() -> None:
    fleet = fleet_of(p0="a")
    run(fleet.partitions["p0"], 5 * MS, 50, way_ns=5 * MS)
    assert fleet.partitions["p0"].hand_off_ns == 100 * US


def test_a_hand_off_over_a_slow_link_may_take_more_than_a_local_one_ever_may() -> None:
    fleet = fleet_of(p0="a")
    run(fleet.partitions["p0"], 60 * MS, 300)
    run(fleet.partitions["p1"], 60 * MS, 300)
    assert 59 * MS < fleet.partitions["p0"].hand_off_ns <= 60 * MS
    assert fleet.partitions["p1"].hand_off_ns == 10 * MS


def test_what_an_idle_node_has_learned_is_forgotten_by_halves() -> None:
    fleet = fleet_of(p0="a", p1="a", p2="a", p3="a")
    run(fleet.partitions["p0"], MS, 200)
    for _ in range(20):
        decay_corrections(fleet.models["m:1"])
    assert {each.hand_off_ns for each in fleet.partitions.values()} <= {100 * US, 101 * US}


def test_nodes_without_partitions_are_forgotten_and_the_others_never() -> None:
    fleet = fleet_of(p0="a", p1="b")
    for number in range(5 * SPARE_NODES):
        fleet.link_measured(LinkMeasured(f"pod-{number}", MS))
    assert len(fleet.nodes.by_name) <= SPARE_NODES + 2
    assert {"a", "b"} <= fleet.nodes.by_name.keys()
