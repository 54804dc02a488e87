"""Nodes: the machines that partitions are on, and how long the way to them takes."""

from __future__ import annotations

from sluice.batcher.fleet.speed import forget_hand_off
from sluice.batcher.interface.events import LinkMeasured, PartitionReady
from sluice.batcher.state import LOCAL, LinkClass, NodeState, PartitionState
from sluice.models.units import NS_PER_MS, NS_PER_S

REMEMBERED = 3
"""A way takes the least of as many measured times: what holds up one message only adds time."""
CHANGE = 0.1
"""A way that differs by less than this part from what is predicted with changes nothing."""
NEAR_NS = NS_PER_MS
"""Round trips up to this time are of one class."""
SPARE_NODES = 64
"""Nodes without partitions that are remembered."""


class NodeTable:
    """Keeps the nodes by name, and the ways to the partitions on them; `changes` counts how often others are known.

    They are in the order in which they were first heard of. A node stays there while it is lost, and is forgotten only
    when there are more than `SPARE_NODES` without partitions.
    """

    def __init__(self, hand_off_ns: int) -> None:
        self._hand_off_ns = hand_off_ns
        self.by_name: dict[str, NodeState] = {}
        self.changes = 0

    def place(self, partition: PartitionState, event: PartitionReady) -> None:
        """Record which node the worker of a partition is on; on another one its hand-off is not known yet."""
        partition.keeps_outputs = event.keeps_outputs
        before = partition.node
        if event.node == ("" if before is None else before.name):
            if before is not None:
                self._follow(partition, before, event.link)
            return
        if before is not None:
            del before.partitions[partition.number]
        partition.node = None
        partition.round_trip_ns, partition.ns_per_byte, partition.link = 0, 0.0, LOCAL
        if event.node:
            node = partition.node = self._node(event.node)
            node.partitions[partition.number] = partition
            self._follow(partition, node, event.link)
        forget_hand_off(partition)

    def measured(self, event: LinkMeasured) -> NodeState | None:
        """Record a measured way; returns its node if predictions with it change."""
        node = self._node(event.node)
        node.measured = (*node.measured[1 - REMEMBERED :], (event.round_trip_ns, event.bytes_per_s))
        round_trip_ns = min([each for each, _ in node.measured])
        bytes_per_s = max([each for _, each in node.measured])
        ns_per_byte = NS_PER_S / bytes_per_s if bytes_per_s else 0.0
        if not (_differs(round_trip_ns, node.round_trip_ns) or _differs(ns_per_byte, node.ns_per_byte)):
            return None
        node.round_trip_ns, node.ns_per_byte = round_trip_ns, ns_per_byte
        node.distance = _class_of(max(round_trip_ns // NEAR_NS, 1), node.distance)
        node.speed = _class_of(bytes_per_s, node.speed)
        for partition in node.partitions.values():
            self._follow(partition, node, partition.link.name)
        return node

    def _node(self, name: str) -> NodeState:
        node = self.by_name.get(name)
        if node is None:
            spare = [each for each in self.by_name.values() if not each.partitions]
            for each in spare[: max(len(spare) - SPARE_NODES + 1, 0)]:
                del self.by_name[each.name]
            node = self.by_name[name] = NodeState(name, self._hand_off_ns)
            self.changes += 1
        return node

    def _follow(self, partition: PartitionState, node: NodeState, link: str) -> None:
        """Predict with the way to a partition's node."""
        partition.round_trip_ns, partition.ns_per_byte = node.round_trip_ns, node.ns_per_byte
        partition.link = LinkClass(link, node.speed, node.distance)


def _differs(now: float, before: float) -> bool:
    return abs(now - before) > CHANGE * before


def _class_of(value: int, before: int) -> int:
    """The class of a value, the next lower power of two; as before while it is within a factor of two of that class."""
    present = value.bit_length()
    return before if before and value and abs(present - before) <= 1 else present
