"""The nodes that workers are on: the ways there, and nodes that are lost with all their workers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from sluice.gateway.cluster.links import NodeLink

HOLD_S = 0.05
"""The loss of a worker is held back for this time, to see whether its whole node is lost."""
SILENT_S = 1.2
"""Workers that were silent for this time when another one of their node is lost are lost with it. They answer pings
more often."""
MOST_VACANT = 64
"""Nodes without workers whose links are kept: pods have other names each time."""
REPORT_S = 1.0
"""The shortest time between two reports of a link."""
CHANGE = 0.1
"""A smaller change of a link is not reported."""


class NodeWorker(Protocol):
    """A worker of a node with which there is a session."""

    heard_s: float
    """The time of the event loop at which the last message came."""

    def lost(self, reason: str, *, is_node_lost: bool) -> None:
        """The worker is lost for that reason."""
        ...

    def abandoned(self, reason: str) -> None:
        """The batches of the lost worker fail for that reason."""
        ...


class _Node:
    def __init__(self) -> None:
        self.workers: set[NodeWorker] = set()
        self.broken: dict[NodeWorker, str] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.link = NodeLink()
        self.reported_s = -REPORT_S
        self.reported = (0, 0)


class NodeWatch:
    """Knows the workers of each node. `measured` gets a node, its round trip in ns and its bytes a second.

    A worker whose connection breaks is lost at once if it is the last one of its node, and else a moment later. If all
    workers of a node are gone by then, or silent, they are lost for one reason. All reasons begin with the node.
    """

    def __init__(self, measured: Callable[[str, int, int], None]) -> None:
        self._measured = measured
        self._nodes: dict[str, _Node] = {}

    @property
    def links(self) -> Mapping[str, NodeLink]:
        """The ways to the nodes that had workers."""
        return {name: node.link for name, node in self._nodes.items()}

    def link(self, node: str) -> NodeLink:
        """The way to a node."""
        return self._node(node).link

    def joined(self, node: str, worker: NodeWorker) -> None:
        """There is a session with a worker of a node."""
        self._node(node).workers.add(worker)

    def left(self, node: str, worker: NodeWorker) -> None:
        """The session with a worker has ended as it was meant to."""
        known = self._nodes.get(node)
        if known is not None:
            known.workers.discard(worker)
            known.broken.pop(worker, None)

    def answered(self, node: str, round_trip_ns: int) -> None:
        """A small message to a node was answered; the link is reported from time to time if it has changed."""
        known = self._node(node)
        known.link.answered(round_trip_ns)
        now_s, now = asyncio.get_running_loop().time(), (known.link.round_trip_ns, known.link.bytes_per_s)
        if now_s - known.reported_s >= REPORT_S and any(map(_differ, now, known.reported)):
            known.reported, known.reported_s = now, now_s
            self._measured(node, *now)

    def broke(self, node: str, worker: NodeWorker, reason: str) -> None:
        """The session with a worker has ended unexpectedly."""
        known = self._node(node)
        known.broken[worker] = reason
        if known.workers == known.broken.keys():
            self._flush(node, known)
        elif known.timer is None:
            known.timer = asyncio.get_running_loop().call_later(HOLD_S, self._flush, node, known)

    def close(self) -> None:
        """Report nothing more."""
        for known in self._nodes.values():
            self._stop(known)

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            vacant = [other for other, each in self._nodes.items() if not each.workers and not each.broken]
            if len(vacant) >= MOST_VACANT:
                del self._nodes[vacant[0]]
            node = self._nodes[name] = _Node()
        return node

    def _flush(self, name: str, node: _Node) -> None:
        """Report the workers of a node that are lost by now: all of them, if the others are silent."""
        self._stop(node)
        broken, node.broken = node.broken, {}
        first = next(iter(broken.values()), "")
        silent_s = asyncio.get_running_loop().time() - SILENT_S
        others = node.workers - broken.keys()
        is_node_lost = all(each.heard_s <= silent_s for each in others)
        if is_node_lost:
            broken |= dict.fromkeys(others, first)
        node.workers -= broken.keys()
        whole = first if len(broken) == 1 else f"its {len(broken)} workers are gone: {first}"
        reasons = {worker: f"node {name}: {whole if is_node_lost else own}" for worker, own in broken.items()}
        for worker, reason in reasons.items():
            worker.lost(reason, is_node_lost=is_node_lost)
        for worker, reason in reasons.items():
            worker.abandoned(reason)

    @staticmethod
    def _stop(node: _Node) -> None:
        if node.timer is not None:
            node.timer.cancel()
            node.timer = None


def _differ(now: int, before: int) -> bool:
    return abs(now - before) > CHANGE * before
