"""Nodes of the simulator: links that batches share, and what is kept where."""

from collections.abc import Iterable, Sequence

import msgspec

from sluice.batcher.interface.config import SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import DispatchBatch, Member
from sluice.batcher.interface.events import Event, LinkMeasured, PartitionReady
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


class SimulatedNode(msgspec.Struct, frozen=True):
    """A machine with some of the partitions, at the end of a link of its own.

    The link carries `bytes_per_s` each way, one batch after the other, and a byte is `latency_ns` on its way. With
    `keeps_outputs`, a stage whose sources ran there is not sent their outputs again.
    """

    name: str
    partitions: tuple[str, ...]
    bytes_per_s: int
    latency_ns: int = 0
    keeps_outputs: bool = False

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0:
            raise ConfigError(f"node {self.name}: expected a bandwidth of at least 1 byte a second")
        if self.latency_ns < 0:
            raise ConfigError(f"node {self.name}: expected a latency of at least 0 ns, got {self.latency_ns}")


class NodeLost(Event, frozen=True):
    """A node is gone until `back_ns`; None: for good."""

    node: str
    back_ns: int | None


class _Link:
    """The two directions of a link: when each has sent what it was given."""

    __slots__ = ("_back_ns", "_node", "_there_ns")

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._there_ns = 0
        self._back_ns = 0

    def send(self, nbytes: int, now_ns: int) -> int:
        """Send something to the node; returns when it is there."""
        self._there_ns = max(self._there_ns, now_ns) + self._took_ns(nbytes)
        return self._there_ns + self._node.latency_ns

    def answer(self, nbytes: int, now_ns: int) -> int:
        """Send something back; returns when it is there."""
        self._back_ns = max(self._back_ns, now_ns) + self._took_ns(nbytes)
        return self._back_ns + self._node.latency_ns

    def _took_ns(self, nbytes: int) -> int:
        return nbytes * NS_PER_S // self._node.bytes_per_s


class SimulatedNodes:
    """The nodes of a simulation, and what has been on their links.

    `sent_bytes` have been sent to nodes and `saved_bytes` have not, since they were there. Of the stages that take
    outputs of others, `near` ran on a node where one of those had run, and `far` on another one.
    """

    def __init__(self, nodes: Sequence[SimulatedNode], spec: SchedulerSpec) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._of = {partition: node for node in nodes for partition in node.partitions}
        unknown = sorted(self._of.keys() - {partition.name for partition in spec.partitions})
        if unknown or len(self._of) != sum(len(node.partitions) for node in nodes):
            what = f"no partition {unknown[0]!r}" if unknown else "a partition is on two nodes"
            raise ConfigError(f"nodes: {what}; expected each partition on one node at most")
        self._links = {node.name: _Link(node) for node in nodes}
        self._bytes = {model.key: (model.input_bytes, model.output_bytes) for model in spec.models}
        self._stages = {pipeline.name: pipeline.stages for pipeline in spec.pipelines}
        self._requests: dict[int, tuple[StageConfig, ...]] = {}
        self._ran_on: dict[int, dict[int, SimulatedNode | None]] = {}
        self.sent_bytes = 0
        self.saved_bytes = 0
        self.near = 0
        self.far = 0

    def measured(self) -> Iterable[LinkMeasured]:
        """The links as a gateway measures them."""
        return [LinkMeasured(each.name, 2 * each.latency_ns, each.bytes_per_s) for each in self._nodes.values()]

    def placed(self, event: PartitionReady) -> PartitionReady:
        """The event of a worker that comes up, on the node of its partition."""
        node = self._of.get(event.partition)
        if node is None:
            return event
        return msgspec.structs.replace(event, node=node.name, keeps_outputs=node.keeps_outputs)

    def partitions_of(self, name: str) -> tuple[str, ...]:
        """The partitions of a node."""
        return self._nodes[name].partitions

    def is_remote(self, partition: str) -> bool:
        """True for a partition on a node."""
        return partition in self._of

    def arrived(self, request: int, pipeline: str) -> None:
        """Record a request, whose stages may run on nodes."""
        self._requests[request] = self._stages[pipeline]
        self._ran_on[request] = {}

    def settled(self, request: int) -> None:
        """Forget a request."""
        self._requests.pop(request, None)
        self._ran_on.pop(request, None)

    def lost(self, name: str) -> None:
        """Forget what is on the link of a node, and what the node has kept."""
        self._links[name] = _Link(self._nodes[name])
        for ran_on in self._ran_on.values():
            for stage, node in ran_on.items():
                if node is not None and node.name == name:
                    ran_on[stage] = None

    def send(self, batch: DispatchBatch, now_ns: int) -> int:
        """Send the inputs of a batch to its partition; returns when they are there."""
        node = self._of[batch.partition]
        nbytes = batch.rows * self._bytes[batch.model][0]
        saved = sum(self._kept_bytes(member, node) for member in batch.members)
        self.sent_bytes += nbytes - saved
        self.saved_bytes += saved
        return self._links[node.name].send(nbytes - saved, now_ns)

    def answer(self, batch: DispatchBatch, now_ns: int) -> int:
        """Send the outputs of a batch back; returns when they are there."""
        node = self._of[batch.partition]
        for member in batch.members:
            if (ran_on := self._ran_on.get(member.request)) is not None:
                ran_on[member.stage] = node
        return self._links[node.name].answer(batch.rows * self._bytes[batch.model][1], now_ns)

    def _kept_bytes(self, member: Member, node: SimulatedNode) -> int:
        """The bytes of a member's inputs that are on its node already."""
        stages = self._requests.get(member.request)
        if stages is None or not stages[member.stage].sources:
            return 0
        stage, ran_on = stages[member.stage], self._ran_on[member.request]
        if any(ran_on.get(source) is node for source in stage.sources):
            self.near += 1
        else:
            self.far += 1
        is_kept = node.keeps_outputs and all(ran_on.get(source) is node for source in stage.sources)
        return member.rows * stage.source_bytes if is_kept else 0
