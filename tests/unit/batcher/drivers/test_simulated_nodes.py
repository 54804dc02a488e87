"""Batches share the links of their nodes, which are lost and come back."""

import pytest

from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulated_nodes import SimulatedNode
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PipelineConfig, ScheduledModel, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, PartitionLost, PartitionReady
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.errors import ConfigError
from tests.support.scheduling.builders import MS, ONE, US, S, arrival, spec_of
from tests.support.scheduling.services import WithoutConfidences

MEGABYTE = 1_000_000
GIGABYTE = 1_000 * MEGABYTE
"""A second: a megabyte takes 1 ms."""


class OneMillisecond(WithoutConfidences):
    """Every batch takes 1 ms."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return MS


class Run:
    """A run over nodes: when requests were complete, what was lost, and its journal."""

    def __init__(self, *nodes: SimulatedNode, partitions: tuple[str, ...] = ("r0", "r1")) -> None:
        self.done_ns: dict[int, int] = {}
        self.outcomes: list[str] = []
        self.ran: list[tuple[int, int]] = []
        self.lost: list[tuple[str, str, bool]] = []
        self.journal: list[bytes] = []
        models = [
            ScheduledModel(key, 1, NoBatchingSettings(), input_bytes=MEGABYTE, output_bytes=MEGABYTE // 2)
            for key in ("m:1", "n:1")
        ]
        chained = PipelineConfig(
            "chain:1", (StageConfig("m", "m:1"), StageConfig("n", "n:1", (0,), source_bytes=MEGABYTE))
        )
        single = PipelineConfig("m:1", (StageConfig("m", "m:1"),))
        spec = spec_of(models, (single, chained), partitions=partitions)
        writer = JournalWriter(self.journal.append, spec)

        def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
            writer.record(now_ns, event, decisions)
            self.observe(now_ns, event, decisions)

        self.simulator = Simulator(Scheduler(spec), OneMillisecond(), observe, nodes=nodes)
        for name in partitions:
            self.simulator.at(0, PartitionReady(name, {"m:1": ONE, "n:1": ONE}))

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, BatchCompleted):
            self.ran.append((event.started_ns, event.ended_ns))
        elif isinstance(event, PartitionLost):
            self.lost.append((event.partition, event.reason, event.is_node_lost))
        for decision in decisions:
            if isinstance(decision, CompleteRequest):
                assert decision.request not in self.done_ns, "it is answered twice"
                self.done_ns[decision.request] = now_ns
                self.outcomes.append(decision.outcome)

    def run(self, *arrived_ns: int, pipeline: str = "m:1") -> None:
        self.simulator.run(
            (time_ns, arrival(request, 60 * S, pipeline)) for request, time_ns in enumerate(arrived_ns, start=1)
        )


def test_a_batch_takes_the_time_of_its_bytes_each_way() -> None:
    """1 ms for a megabyte there, 1 ms to run, 0.5 ms for half a megabyte back, and 0.1 ms on the way twice."""
    run = Run(SimulatedNode("a", ("r0", "r1"), GIGABYTE, 100 * US))
    run.run(0)
    assert run.ran == [(1100 * US, 2100 * US)]
    assert run.done_ns == {1: 2700 * US}


def test_the_partitions_of_a_node_share_its_link() -> None:
    """The second batch is sent once the first one has left: its inputs are there 1 ms later."""
    run = Run(SimulatedNode("a", ("r0", "r1"), GIGABYTE))
    run.run(0, 0)
    assert run.ran == [(1 * MS, 2 * MS), (2 * MS, 3 * MS)]
    assert run.done_ns == {1: 2500 * US, 2: 3500 * US}


def test_each_node_has_a_link_of_its_own() -> None:
    run = Run(SimulatedNode("a", ("r0",), GIGABYTE), SimulatedNode("b", ("r1",), GIGABYTE))
    run.run(0, 0)
    assert run.done_ns == {1: 2500 * US, 2: 2500 * US}


def test_local_partitions_have_no_way() -> None:
    run = Run(SimulatedNode("a", ("r1",), GIGABYTE))
    run.run(0)
    assert run.done_ns == {1: MS}


@pytest.mark.parametrize(("keeps_outputs", "done_ns"), [(False, 5 * MS), (True, 4 * MS)])
def test_what_a_node_has_kept_is_not_sent_to_it_again(keeps_outputs: bool, done_ns: int) -> None:
    run = Run(SimulatedNode("a", ("r0", "r1"), GIGABYTE, keeps_outputs=keeps_outputs))
    run.run(0, pipeline="chain:1")
    assert run.done_ns == {1: done_ns}
    assert run.simulator.nodes.saved_bytes == (MEGABYTE if keeps_outputs else 0)
    assert (run.simulator.nodes.near, run.simulator.nodes.far) == (1, 0)


def test_a_lost_node_loses_its_partitions_for_one_reason_and_its_batches_run_elsewhere() -> None:
    nodes = (SimulatedNode("a", ("r0", "r1"), GIGABYTE), SimulatedNode("b", ("r2", "r3"), GIGABYTE))
    run = Run(*nodes, partitions=("r0", "r1", "r2", "r3"))
    run.simulator.lose_node(1500 * US, "a", back_ns=20 * MS)
    run.run(*[number * MS // 2 for number in range(60)])
    assert run.lost == [("r0", "node a: no answer", True), ("r1", "node a: no answer", True)]
    assert sorted(run.done_ns) == list(range(1, 61))
    fleet = run.simulator._scheduler.dispatcher.fleet
    assert all(partition.ready for partition in fleet.partitions.values())


def test_a_node_that_stays_away_leaves_its_work_to_the_others() -> None:
    nodes = (SimulatedNode("a", ("r0",), GIGABYTE), SimulatedNode("b", ("r1",), GIGABYTE))
    run = Run(*nodes)
    run.simulator.lose_node(1500 * US, "b")
    run.simulator.lose_node(1500 * US, "b")
    run.run(*[number * MS for number in range(10)])
    assert sorted(run.done_ns) == list(range(1, 11))
    assert run.lost == [("r1", "node b: no answer", True)]


def test_a_journal_with_nodes_replays() -> None:
    run = Run(SimulatedNode("a", ("r0",), GIGABYTE), SimulatedNode("b", ("r1",), GIGABYTE, 10 * MS, keeps_outputs=True))
    run.simulator.lose_node(7 * MS, "a", 9 * MS)
    run.run(*[number * MS for number in range(20)], pipeline="chain:1")
    assert replay(run.journal) is None


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ((SimulatedNode("a", ("r9",), 1),), "nodes: no partition 'r9'"),
        ((SimulatedNode("a", ("r0",), 1), SimulatedNode("b", ("r0",), 1)), "nodes: a partition is on two nodes"),
    ],
)
def test_each_partition_is_on_one_node_at_most(nodes: tuple[SimulatedNode, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Run(*nodes)


def test_a_link_has_a_bandwidth_and_no_negative_latency() -> None:
    with pytest.raises(ConfigError, match="node a: expected a bandwidth of at least 1 byte a second"):
        SimulatedNode("a", (), 0)
    with pytest.raises(ConfigError, match="node a: expected a latency of at least 0 ns, got -1"):
        SimulatedNode("a", (), 1, -1)
