"""The nodes of remote workers, as they come and go."""

import asyncio

from sluice.gateway.cluster.nodes import MOST_VACANT, NodeWatch


class Worker:
    heard_s = 0.0

    def lost(self, reason: str, *, is_node_lost: bool) -> None:
        """Nothing is lost here."""

    def abandoned(self, reason: str) -> None:
        """Nothing is lost here."""


def test_nodes_without_workers_are_forgotten_once_there_are_many() -> None:
    async def test() -> None:
        watch = NodeWatch(lambda node, round_trip_ns, bytes_per_s: None)
        stays = Worker()
        watch.joined("stays", stays)
        for number in range(10 * MOST_VACANT):
            worker = Worker()
            watch.joined(f"pod-{number}", worker)
            watch.left(f"pod-{number}", worker)
            watch.left("never-heard-of", worker)
        assert len(watch.links) <= MOST_VACANT + 2
        assert {"stays", f"pod-{10 * MOST_VACANT - 1}"} <= watch.links.keys()

    asyncio.run(test())
