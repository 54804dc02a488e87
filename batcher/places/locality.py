"""Locality: which of several equal partitions on nodes a stage runs on.

The first stage of a request prefers the home node of its model, and then the nodes that OpenWhisk's load balancer
would try (`sluice.batcher.fleet.home_order`). Every later stage prefers the node of the stages that it waits for. (ESG,
HPDC 2024, dispatches so, too.) Both only break ties between partitions where the stage would end at the same time, so
they never cost a deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.batcher.fleet.home_order import home_order, name_hash
from sluice.batcher.fleet.member_table import is_idle
from sluice.batcher.fleet.nodes import NodeTable
from sluice.batcher.state import ModelState, NodeState, PartitionState, Place, StageState

TRIED = 8
"""Nodes that are looked at for an idle partition before any idle one is taken."""
REMEMBERED = 1024
"""Models whose orders of nodes are remembered."""


class Locality:
    """The orders in which the first stages of models prefer the `nodes`."""

    __slots__ = ("_changes", "_nodes", "_orders")

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._changes = 0
        self._orders: dict[str, list[NodeState]] = {}

    def order(self, model: ModelState) -> Sequence[NodeState]:
        """All nodes in the order in which the first stages of a model prefer them."""
        key = model.config.key
        if self._changes != self._nodes.changes or len(self._orders) > REMEMBERED:
            self._changes = self._nodes.changes
            self._orders.clear()
        order = self._orders.get(key)
        if order is None:
            nodes = list(self._nodes.by_name.values())
            order = self._orders[key] = [nodes[index] for index in home_order(len(nodes), name_hash(key))]
        return order

    def nearest_free(self, model: ModelState, free: PartitionState, now_ns: int) -> PartitionState:
        """The first idle equal of `free` in the order of a model's nodes, as far as that is found in `TRIED` nodes."""
        for node in self.order(model)[:TRIED]:
            for partition in node.partitions.values():
                if partition.group is free.group and is_idle(partition, now_ns):
                    return partition
        return free


def near_nodes(stage: StageState, places: Sequence[Place | None]) -> list[NodeState]:
    """The nodes of the places of the stages that a stage waits for."""
    near: list[NodeState] = []
    for source in stage.waits_for:
        place = places[source]
        if place is not None and (node := place[0].partition.node) is not None and node not in near:
            near.append(node)
    return near


def kept_bytes(stage: StageState, places: Sequence[Place | None], partition: PartitionState) -> int:
    """Bytes of a row that need not be sent to a partition, since the stages before have their places on its node."""
    if not stage.config.source_bytes or not partition.keeps_outputs:
        return 0
    for source in stage.config.sources:
        place = places[source]
        if place is None or place[0].partition.node is not partition.node:
            return 0
    return stage.config.source_bytes
