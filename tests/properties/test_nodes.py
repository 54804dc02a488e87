"""Nodes are lost with all their partitions, come back, and their links change: every request is settled once."""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from sluice.batcher.interface.events import LinkMeasured, PartitionLost, PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.models.profiles.latency_table import LatencyTable
from tests.properties.test_scheduler_machine import SchedulerMachine
from tests.support.scheduling.builders import MS
from tests.support.scheduling.machine_world import KINDS

NODES = ("", "near", "far")
"""Where workers may be; "" is the gateway's own machine."""
MOST_NODES_LOST = 3
"""A request is given up once as many nodes were lost with it."""


class NodesMachine(SchedulerMachine):
    """The scheduler machine with partitions on nodes; workers are lost with their nodes only."""

    def __init__(self) -> None:
        super().__init__()
        self.places = dict.fromkeys(KINDS, "near")
        self.keeps_outputs = False
        self.losses: Counter[int] = Counter()

    def ready(self, name: str, tables: dict[str, LatencyTable]) -> PartitionReady:
        return PartitionReady(name, tables, node=self.places[name], keeps_outputs=self.keeps_outputs)

    @rule(
        node=st.sampled_from(NODES[1:]),
        round_trip_ns=st.sampled_from([0, MS // 5, 3 * MS, 40 * MS]),
        bytes_per_s=st.sampled_from([0, 10**6, 10**8, 10**10]),
        times=st.integers(1, 3),
    )
    def measure(self, node: str, round_trip_ns: int, bytes_per_s: int, times: int) -> None:
        for _ in range(times):
            self.tell(LinkMeasured(node, round_trip_ns, bytes_per_s))

    @precondition(lambda self: len(self.up) < len(KINDS))
    @rule(data=st.data(), node=st.sampled_from(NODES), keeps_outputs=st.booleans())
    def place_one(self, data: st.DataObject, node: str, keeps_outputs: bool) -> None:
        """A worker is placed on another node."""
        name = data.draw(st.sampled_from(sorted(set(KINDS) - self.up)))
        self.places[name], self.keeps_outputs = node, keeps_outputs
        self.restore(name)

    def lose(self, name: str) -> None:
        """The whole node goes: all its partitions are lost for the same reason, and then their batches fail."""
        node = self.places[name]
        gone = [each for each in sorted(self.up) if self.places[each] == node] if node else [name]
        reason = f"node {node}: no answer" if node else "killed"
        for each in gone:
            self.up.remove(each)
            self.holds[each].clear()
            self.orders[each].clear()
            began = [*self.running[each][:1], *(batch for batch, _ in self.suspended[each])]
            self.losses.update({member.request for batch in began for member in batch.members})
            self.tell(PartitionLost(each, reason, bool(node)))
        for each in gone:
            self.fail_what_it_held(each, reason)

    def settle(self, request: int, outcome: Outcome) -> None:
        super().settle(request, outcome)
        if outcome is Outcome.FAILED_WORKER_LOST:
            at_least = MOST_NODES_LOST if all(self.places.values()) else 2
            assert self.losses[request] >= at_least, f"request {request} was not retried"


TestNodes = NodesMachine.TestCase
TestNodes.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
