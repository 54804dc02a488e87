"""First stages go to the home node of their model, later ones to the node of the stage before; deadlines come first."""

from sluice.batcher.fleet.home_order import home_order, name_hash
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import LinkMeasured, PartitionReady, RequestArrived
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import MS, ONE, S, arrival, chain, completed, model, single, spec_of, step

TWO_EACH = ("a0", "a1", "b0", "b1", "c0", "c1")
"""Partitions of the nodes a, b and c."""


def cluster() -> Scheduler:
    """A scheduler over partitions on the nodes that their names begin with, over links without a known bandwidth."""
    keys = {"m:1": ONE, "n:1": ONE}
    spec = spec_of(
        [model("m:1", 1), model("n:1", 1)],
        (single("m:1"), single("n:1"), chain("m:1", "n:1")),
        partitions=[PartitionConfig(name, "cpu1") for name in TWO_EACH],
    )
    scheduler = Scheduler(spec)
    step(scheduler, 0, *(PartitionReady(name, keys, node=name[0], keeps_outputs=True) for name in TWO_EACH))
    return scheduler


def hosts(scheduler: Scheduler, now_ns: int, *events: RequestArrived) -> list[str]:
    """The partitions of the batches that the arrival of requests leads to."""
    return [each.partition for each in step(scheduler, now_ns, *events) if isinstance(each, DispatchBatch)]


def nodes_for(key: str) -> list[str]:
    """The nodes in the order in which the first stages of a model prefer them."""
    return [TWO_EACH[2 * node][0] for node in home_order(3, name_hash(key))]


def test_the_first_stage_goes_to_the_home_node_and_then_to_the_next_in_its_order() -> None:
    scheduler, order = cluster(), nodes_for("m:1")
    found = [hosts(scheduler, 0, arrival(request, S)) for request in range(6)]
    assert [name for names in found for name in names] == [f"{node}{part}" for node in order for part in (0, 1)]


def test_two_models_may_have_other_homes() -> None:
    scheduler, order = cluster(), nodes_for("n:1")
    assert hosts(scheduler, 0, arrival(0, S, "n:1")) == [f"{order[0]}0"]


def test_a_home_node_that_is_lost_is_left_out() -> None:
    scheduler, order = cluster(), nodes_for("m:1")
    for name in TWO_EACH:
        if name[0] == order[0]:
            scheduler.dispatcher.lost(name, 0, is_node_lost=True)
    assert hosts(scheduler, MS, arrival(0, S)) == [f"{order[1]}0"]


def test_a_later_stage_stays_on_the_node_of_the_stage_before() -> None:
    scheduler = cluster()
    (first,) = hosts(scheduler, 0, arrival(0, S, "chain:1"))
    done = step(scheduler, MS, completed(1, 0, MS))
    assert [each.partition[0] for each in done if isinstance(each, DispatchBatch)] == [first[0]]


def test_a_quicker_way_counts_for_more_than_the_home() -> None:
    """A request of 4 ms has no time for 5 ms on the way to its home node, and goes to the node that is near."""
    scheduler, order = cluster(), nodes_for("m:1")
    for _ in range(3):
        step(scheduler, 0, LinkMeasured(order[0], 5 * MS), LinkMeasured(order[1], 6 * MS), LinkMeasured(order[2], 1))
    assert hosts(scheduler, 0, arrival(0, 4 * MS)) == [f"{order[2]}0"]
