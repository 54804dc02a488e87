"""A listener that keeps what a target reports."""

import asyncio
from typing import NamedTuple

from sluice.loadgen.records.record import Status


class Ended(NamedTuple):
    """The end of a query."""

    status: Status
    answer: object
    reason: str
    stages: str


class Listener:
    """Keeps reports by query. `wait` waits until a number of queries have ended."""

    def __init__(self) -> None:
        self.waited: list[int] = []
        self.left: list[int] = []
        self.ended: dict[int, Ended] = {}
        self._changed = asyncio.Event()

    def queued(self, query: int) -> None:
        self.waited.append(query)

    def sent(self, query: int) -> None:
        self.left.append(query)

    def done(self, query: int, status: Status, answer: object = None, reason: str = "", stages: str = "") -> None:
        assert query not in self.ended, f"query {query} ended twice"
        self.ended[query] = Ended(status, answer, reason, stages)
        self._changed.set()

    async def wait(self, queries: int) -> None:
        async with asyncio.timeout(60):
            while len(self.ended) < queries:
                self._changed.clear()
                await self._changed.wait()
