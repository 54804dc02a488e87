"""The way to another node counts: for whether a request is admitted, where it runs, and when its batch closes."""

from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, ScheduledModel, StageConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    CompleteRequest,
    DispatchBatch,
    FailRequest,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchFailed,
    FailureCause,
    LinkMeasured,
    PartitionLost,
    PartitionReady,
    PlanBuilt,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, ONE, US, S, arrival, completed, single, spec_of, step

HAND_OFF_NS = 100 * US
MEGABYTE = 1_000_000
TEN_A_SECOND = 10 * 10**9
"""A link of 10 GB/s: a megabyte takes 100 us."""


def heavy(key: str, max_batch: int = 1) -> ScheduledModel:
    """A model whose rows have a megabyte each way."""
    return ScheduledModel(key, max_batch, DeadlineSettings(), input_bytes=MEGABYTE, output_bytes=MEGABYTE)


def remote(
    *names: str, nodes: str = "", max_batch: int = 1, late: Late = Late.SERVE, keeps_outputs: bool = False
) -> Scheduler:
    """A scheduler whose partitions are on the nodes of these letters ("-": the gateway's machine), over 10 GB/s."""
    second = StageConfig("n", "n:1", (0,), source_bytes=MEGABYTE)
    chained = PipelineConfig("chain:1", (StageConfig("m", "m:1"), second), late)
    spec = spec_of(
        [heavy("m:1", max_batch), heavy("n:1", max_batch)],
        (single("m:1", late), single("n:1", late), chained),
        partitions=[PartitionConfig(name, "cpu1") for name in names],
        limits=Limits(hand_off_ns=HAND_OFF_NS),
    )
    scheduler = Scheduler(spec, LivePlanner())
    tables = {"m:1": ONE, "n:1": ONE}
    for name, node in zip(names, nodes or "a" * len(names), strict=True):
        if node != "-":
            step(scheduler, 0, LinkMeasured(node, 200 * US, TEN_A_SECOND))
        place = "" if node == "-" else node
        step(scheduler, 0, PartitionReady(name, tables, node=place, keeps_outputs=keeps_outputs))
    step(scheduler, 0, PlanBuilt(1, None))
    return scheduler


def is_admitted(scheduler: Scheduler, request: int, within_ns: int, pipeline: str = "m:1") -> bool:
    decisions = step(scheduler, 0, arrival(request, within_ns, pipeline))
    return not any(isinstance(each, RejectRequest) for each in decisions)


def test_a_request_is_admitted_only_if_there_is_time_for_its_way() -> None:
    """1 ms for the batch, 0.1 ms for the hand-off, 0.2 ms there and back, 0.1 ms each way for a megabyte."""
    assert not is_admitted(remote("r", late=Late.EVICT), 0, 1500 * US - 1)
    assert is_admitted(remote("r", late=Late.EVICT), 0, 1500 * US)


def test_the_same_request_is_admitted_without_a_way() -> None:
    assert is_admitted(remote("r", nodes="-", late=Late.EVICT), 0, 1100 * US)
    assert not is_admitted(remote("r", nodes="-", late=Late.EVICT), 0, 1100 * US - 1)


def test_every_stage_of_a_chain_has_its_way() -> None:
    assert not is_admitted(remote("r", late=Late.EVICT), 0, 3000 * US - 1, "chain:1")
    assert is_admitted(remote("r", late=Late.EVICT), 0, 3000 * US, "chain:1")


def test_a_local_partition_comes_before_one_that_is_far_away_where_both_are_idle() -> None:
    (batch,) = step(remote("r", "l", nodes="a-"), 0, arrival(0, S))
    assert isinstance(batch, DispatchBatch)
    assert batch.partition == "l"


def test_a_link_that_carries_less_than_the_partition_runs_bounds_what_is_admitted() -> None:
    """A row is 1.25 ms each way and runs for 0.1 ms. By 40 ms the link could send 32; the partition could run 400."""
    spec = spec_of([heavy("m:1")], partitions=["r"], limits=Limits(hand_off_ns=HAND_OFF_NS))
    scheduler = Scheduler(spec)
    step(scheduler, 0, LinkMeasured("a", 0, 800 * MEGABYTE))
    step(scheduler, 0, PartitionReady("r", {"m:1": LatencyTable.from_ms({1: 0.1})}, node="a"))
    admitted = sum(is_admitted(scheduler, request, 40 * MS) for request in range(60))
    assert 25 <= admitted <= 32


def test_the_next_batch_is_sent_while_the_one_before_runs_so_that_its_way_costs_nothing() -> None:
    """It closes a hand-off before the one before ends; what is learned of that end a way later counts from then."""
    scheduler = remote("r")
    first, *_ = step(scheduler, 0, arrival(0, S), arrival(1, S), arrival(2, S))
    assert isinstance(first, DispatchBatch)
    assert scheduler.next_wakeup_ns() == MS - HAND_OFF_NS
    (second,) = step(scheduler, MS - HAND_OFF_NS)
    assert isinstance(second, DispatchBatch)
    back_ns = MS + 400 * US
    step(scheduler, back_ns, completed(1, 200 * US, MS + 200 * US))
    assert scheduler.dispatcher.fleet.partitions["r"].free_at_ns == 2 * MS


def test_what_a_node_keeps_is_not_sent_there_again() -> None:
    """The second stage takes 0.1 ms less on its way than the first one did."""
    for keeps_outputs, way_ns in ((False, 400 * US), (True, 300 * US)):
        scheduler = remote("r", keeps_outputs=keeps_outputs)
        step(scheduler, 0, arrival(0, S, "chain:1"))
        assert scheduler.dispatcher.batches[1].way_ns == 400 * US
        step(scheduler, 2 * MS, completed(1, 200 * US, MS + 200 * US))
        assert scheduler.dispatcher.batches[2].way_ns == way_ns


def test_hand_offs_are_what_a_batch_takes_beyond_its_way() -> None:
    """It was back after 1.5 ms, of which 0.4 ms are its way: 0.1 ms are as usual."""
    scheduler = remote("r")
    step(scheduler, 0, arrival(0, S))
    step(scheduler, 1500 * US, completed(1, 250 * US, 1250 * US))
    assert scheduler.dispatcher.fleet.partitions["r"].hand_off_ns == HAND_OFF_NS


def decided(scheduler: Scheduler, now_ns: int, *events: AnyEvent) -> list[AnyDecision]:
    """The decisions about requests, without the order of a plan that a lost partition leads to."""
    return [each for each in step(scheduler, now_ns, *events) if not isinstance(each, BuildPlan)]


def lose_node(scheduler: Scheduler, now_ns: int, *names: str) -> list[AnyDecision]:
    """All partitions of a node are lost, and then their batches fail."""
    reason = "node a: no answer"
    lost = [PartitionLost(name, reason, is_node_lost=True) for name in names]
    batches = [
        BatchFailed(identity, FailureCause.WORKER_LOST, reason)
        for identity, batch in scheduler.dispatcher.batches.items()
        if batch.partition.name in names
    ]
    return decided(scheduler, now_ns, *lost, *batches)


def test_the_batches_of_a_lost_node_run_elsewhere_as_they_were() -> None:
    scheduler = remote("a0", "a1", "b0", nodes="aab", max_batch=4)
    (batch,) = step(scheduler, 0, *(arrival(request, S) for request in range(4)))
    assert isinstance(batch, DispatchBatch)
    names = ("a0", "a1") if batch.partition[0] == "a" else ("b0",)
    (again,) = lose_node(scheduler, MS, *names)
    assert isinstance(again, DispatchBatch)
    assert (again.members, again.reason) == (batch.members, ReleaseReason.RETRY)
    assert again.partition not in names


def test_a_request_is_given_up_once_three_nodes_were_lost_with_it() -> None:
    """Two are no reason to think that it is the cause, as they would be for single workers."""
    scheduler = remote("a0", "b0", "c0", "d0", nodes="abcd")
    (batch,) = step(scheduler, 0, arrival(0, 60 * S))
    for lost in (1, 2, 3):
        assert isinstance(batch, DispatchBatch)
        (batch,) = lose_node(scheduler, lost * MS, batch.partition)
    reason = "3 nodes were lost with this request: node a: no answer"
    assert batch == FailRequest(0, Outcome.FAILED_WORKER_LOST, reason)


def test_a_request_that_takes_nodes_along_takes_no_other_with_it() -> None:
    """A batch of four is whole the first time, and then halved until the one that is to blame is alone."""
    nodes = "abcdefgh"
    scheduler = remote(*(f"{node}0" for node in nodes), nodes=nodes, max_batch=4)
    decisions = step(scheduler, 0, *(arrival(request, 60 * S) for request in range(4)))
    failed, now_ns = [], 0
    sizes = []
    while decisions:
        dispatched = [each for each in decisions if isinstance(each, DispatchBatch)]
        failed += [each.request for each in decisions if isinstance(each, FailRequest)]
        decisions = []
        for batch in dispatched:
            now_ns += MS
            if 0 in [member.request for member in batch.members]:
                sizes.append(len(batch.members))
                decisions += lose_node(scheduler, now_ns, batch.partition)
            else:
                decisions += decided(scheduler, now_ns, completed(batch.batch, now_ns - MS, now_ns))
    assert sizes == [4, 4, 2, 1]
    assert failed == [0]
    assert scheduler.requests == {}


def test_a_request_of_a_lost_node_is_answered_once() -> None:
    scheduler = remote("a0", "b0", nodes="ab")
    (batch,) = step(scheduler, 0, arrival(0, 60 * S))
    assert isinstance(batch, DispatchBatch)
    (again,) = lose_node(scheduler, MS, batch.partition)
    assert isinstance(again, DispatchBatch)
    step(scheduler, 2 * MS, PartitionReady(batch.partition, {"m:1": ONE, "n:1": ONE}, node="a"))
    (done,) = decided(scheduler, 3 * MS, completed(again.batch, MS, 2 * MS))
    assert done == CompleteRequest(0, Outcome.COMPLETED)
