"""Connections of a target, and the queries that wait for one."""

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from sluice.loadgen.records.record import Status
from sluice.loadgen.target.base import QueryListener

CONNECT_TIMEOUT_S = 5.0


class PooledConnection(Protocol):
    """A connection that carries queries."""

    @property
    def transport(self) -> asyncio.Transport:
        """The transport below."""

    def cancel(self, query: int) -> bool:
        """Give up a query that it carries; returns False when the connection is closed by that."""


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(ABC, Generic[C]):
    """The part of a target that all protocols have: at most `connections` connections, opened as queries need them.

    A query that finds no free connection waits. With `max_outstanding` queries waiting and in flight the next is
    dropped.
    """

    _listener: QueryListener

    def __init__(self, connections: int, max_outstanding: int) -> None:
        self._connections = connections
        self._max_outstanding = max_outstanding
        self._free: deque[C] = deque()
        self._open: set[C] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._in_flight: dict[int, C] = {}
        self._waiting: OrderedDict[int, int] = OrderedDict()
        self._closed = False

    @abstractmethod
    async def _connect(self) -> C:
        """Open a connection; raises OSError."""

    @abstractmethod
    def _send(self, query: int, request: int) -> C:
        """Send a query on one of the free connections, which it returns."""

    def issue(self, query: int, request: int) -> None:
        """Send on a free connection, or wait for one."""
        if len(self._in_flight) + len(self._waiting) >= self._max_outstanding:
            self._listener.done(query, Status.DROPPED, reason=f"{self._max_outstanding} queries were outstanding")
        elif self._free:
            self._in_flight[query] = self._send(query, request)
            self._listener.sent(query)
        else:
            self._waiting[query] = request
            self._listener.queued(query)
            self._grow()

    def cancel(self, query: int) -> None:
        """Give up a query. A connection that closes for it is replaced at once."""
        connection = self._in_flight.pop(query, None)
        if connection is not None:
            if not connection.cancel(query):
                self._open.discard(connection)
                self._grow()
        elif self._waiting.pop(query, None) is None:
            return
        self._listener.done(query, Status.CANCELLED)

    async def close(self) -> None:
        """Abort all connections."""
        self._closed = True
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in self._open:
            connection.transport.abort()
        await asyncio.sleep(0)

    def lost(self, connection: C, queries: Sequence[int], reason: str) -> None:
        """Remove a connection that closed, and fail its queries."""
        self._open.discard(connection)
        self.withdraw(connection)
        if self._closed:
            return
        for query in queries:
            del self._in_flight[query]
            self._listener.done(query, Status.ERROR, reason=reason)
        if self._waiting:
            self._grow()

    def withdraw(self, connection: C) -> None:
        """Give a connection no further queries."""
        if connection in self._free:
            self._free.remove(connection)

    def freed(self, connection: C) -> None:
        """Let a connection carry further queries, beginning with one that waits."""
        self._free.append(connection)
        while self._waiting and self._free:
            query, request = self._waiting.popitem(last=False)
            self._in_flight[query] = self._send(query, request)
            self._listener.sent(query)

    def _again(self, query: int, request: int) -> None:
        """Send a query in flight once more, on a connection that is free or will be, unless it was given up."""
        if self._closed or self._in_flight.pop(query, None) is None:
            return
        if self._free:
            self._in_flight[query] = self._send(query, request)
        else:
            self._waiting[query] = request
            self._grow()

    async def _open_first(self, count: int) -> None:
        """Open `count` connections, or as many as there may be; raises OSError."""
        await asyncio.gather(*(self._add() for _ in range(min(count, self._connections))))

    async def _add(self) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await self._connect()
        if connection.transport.is_closing():
            raise ConnectionResetError("the target closed the connection at once")
        self._open.add(connection)
        self.freed(connection)

    def _grow(self) -> None:
        if len(self._open) + len(self._opening) < self._connections:
            task = asyncio.get_running_loop().create_task(self._grow_by_one())
            self._opening.add(task)
            task.add_done_callback(self._grown)

    async def _grow_by_one(self) -> None:
        try:
            await self._add()
        except OSError as error:
            # Each failed attempt settles a query, which bounds the attempts on a dead target.
            if self._waiting:
                query, _ = self._waiting.popitem(last=False)
                self._listener.done(query, Status.ERROR, reason=f"cannot connect: {connect_failure(error)}")

    def _grown(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if self._waiting and not self._closed:
            self._grow()


def connect_failure(error: OSError) -> str:
    """The reason why there is no connection."""
    return f"no connection in {CONNECT_TIMEOUT_S:g} s" if type(error) is TimeoutError else str(error)
