"""The limits of all connections of a protocol together: of their number, of their buffers and of their time."""

import heapq
import math
from collections import Counter
from collections.abc import Collection
from typing import Protocol

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.faults import ClientFaults

RESERVE = 16
"""One connection in 16 is kept for health and metrics."""
ROOM = 64
"""One connection in 64 is closed when there are too many, the idlest first."""
LARGE_BYTES = 64 << 10
"""Requests of which more has been read wait when the buffer is nearly full."""

_DEFAULTS = FrontDoorSettings()


class GuardedConnection(Protocol):
    """A connection as the front door sees it."""

    @property
    def since_s(self) -> float:
        """The time of the last sweep that found it in a new state; 0 if none has."""
        ...

    def is_idle(self) -> bool:
        """True if the client owes the beginning or the rest of a request head, and no request is open."""
        ...

    def kept_bytes(self) -> int:
        """The bytes that are freed if the connection is refused."""
        ...

    def read_bytes(self) -> int:
        """The bytes of the latest request that have been read."""
        ...

    def give_up(self) -> None:
        """Refuse the request that is being read, or end the connection of a client that has more open."""
        ...

    def abort(self) -> None:
        """End the connection at once."""
        ...

    def ask_to_go(self, *, last: bool) -> None:
        """Ask the client to send its next request on another connection; `last` closes one that waits for it."""
        ...

    def sweep(self, now_s: float) -> None:
        """Enforce the time limits."""
        ...

    def regulate_reading(self) -> None:
        """Read on, or stop reading."""
        ...


class FrontDoor:
    """The limits of all connections of a server. One sweep a second enforces those of time."""

    def __init__(
        self,
        settings: FrontDoorSettings = _DEFAULTS,
        budget: Budget | None = None,
        faults: ClientFaults | None = None,
        max_connections: int | None = None,
    ) -> None:
        self.settings = settings
        self.budget = budget or Budget(settings.buffer_bytes(256, 64 << 20))
        self.faults = faults or ClientFaults()
        self.max_connections = max_connections or settings.max_connections
        self.connections: set[GuardedConnection] = set()
        self.paused: set[GuardedConnection] = set()
        """Connections that are not read because the buffer is nearly full."""
        self._addresses: Counter[str] = Counter()
        self.is_leaving = False
        """True from the time on when clients are asked to go."""
        self._pressed = False

    @property
    def open_to_all(self) -> int:
        """The number of connections above which only health and metrics are answered."""
        return self.max_connections - self.max_connections // RESERVE

    def enter(self, connection: GuardedConnection, address: str) -> str:
        """Count a new connection; returns the reason to refuse it, "" if it is admitted."""
        self.connections.add(connection)
        self._addresses[address] += 1
        limit = self.settings.max_connections_per_address
        if limit and self._addresses[address] > limit:
            return f"the client has reached its limit of {limit} connections"
        if len(self.connections) > self.open_to_all:
            self._make_room(connection)
            if len(self.connections) > self.max_connections:
                return f"the server has reached its limit of {self.max_connections} connections"
        return ""

    def leave(self, connection: GuardedConnection, address: str) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self.paused.discard(connection)
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    @property
    def is_full(self) -> bool:
        """True if only health and metrics are answered on new connections."""
        return len(self.connections) > self.open_to_all

    def ask_to_go(self, *, last: bool) -> None:
        """Ask all clients to send their next requests on other connections, which lead to other servers.

        Answers over HTTP carry that from now on. With `last`, connections between two requests are closed.
        """
        self.is_leaving = True
        for connection in tuple(self.connections):
            connection.ask_to_go(last=last)

    def press(self, connection: GuardedConnection) -> None:
        """The buffer is nearly full: let a large request wait. When it is full, give up the largest."""
        while self.budget.used > self.budget.limit and self._give_up_largest():
            pass
        if connection.read_bytes() > LARGE_BYTES and self.budget.used > self.budget.mark:
            self.paused.add(connection)
            connection.regulate_reading()

    def free(self, size: int) -> bool:
        """Give up requests larger than this until that many bytes are free; false if there are too few."""
        while self.budget.used + size > self.budget.limit:
            largest = self._largest()
            if largest is None or largest.kept_bytes() <= size:
                return False
            largest.give_up()
        return True

    def relieve(self) -> None:
        """Read on if there is room again."""
        if self.budget.used <= self.budget.mark:
            paused, self.paused = self.paused, set()
            for connection in paused:
                connection.regulate_reading()
        self._pressed = self._pressed and bool(self.paused)

    def sweep(self, now_s: float) -> None:
        """Enforce the time limits; give up the largest requests if others have waited since the last sweep."""
        for connection in tuple(self.connections):
            connection.sweep(now_s)
        most = self.budget.mark if self.paused and self._pressed else self.budget.limit
        while self.budget.used > most and self._give_up_largest():
            pass
        self.relieve()
        self._pressed = bool(self.paused)
        self.faults.report(now_s)

    def _give_up_largest(self) -> bool:
        """False if no connection keeps anything that can be freed."""
        largest = self._largest()
        if largest is None or not largest.kept_bytes():
            return False
        largest.give_up()
        return True

    def _largest(self) -> GuardedConnection | None:
        """The connection that keeps the most."""
        return max(self.connections, key=lambda each: each.kept_bytes(), default=None)

    def _make_room(self, new: GuardedConnection) -> None:
        idle: Collection[GuardedConnection] = [each for each in self.connections if each is not new and each.is_idle()]
        excess = len(self.connections) - self.open_to_all + self.max_connections // ROOM
        for connection in heapq.nsmallest(excess, idle, key=lambda each: each.since_s or math.inf):
            self.faults.counts["no_connections"] += 1
            connection.abort()
            self.connections.discard(connection)  # now, since the new one takes its place
