"""Bounds calls whose message has not arrived: the core keeps its parts, and does not say how many bytes they have."""

import asyncio
import resource
from pathlib import Path

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.grpcio.call import GrpcioCall
from sluice.gateway.grpc.transport.server import NO_MEMORY, SLOW

TURN_S = 1.0

_STATM = Path("/proc/self/statm")


class AwaitedMessages:
    """The calls that wait for a message. One timer serves all and runs while there are any.

    A call ends when its message has not arrived within `timeout_s`. The memory of the process stands for what the core
    keeps: when it has grown by more than the budget has room for since the last turn without slow calls, all slow calls
    end. Streams are no such calls, since they may wait for their next message.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, budget: Budget, timeout_s: float) -> None:
        self._loop = loop
        self._budget = budget
        self._turns = max(round(timeout_s / TURN_S), 1)
        self._calls: dict[GrpcioCall, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._calm_bytes = self._unseen_bytes()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: GrpcioCall) -> None:
        """A call begins to wait."""
        self._calls[call] = 0
        if self._timer is None:
            self._timer = self._loop.call_later(TURN_S, self._tick)

    def remove(self, call: GrpcioCall) -> None:
        """The message has arrived, or none will."""
        self._calls.pop(call, None)

    def stop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._calls.clear()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TURN_S, self._tick) if self._calls else None
        self.turn()

    def turn(self) -> None:
        """End the calls that have waited too long, or too many. Called once a second while there are calls."""
        unseen = self._unseen_bytes()
        slow = []
        for call, turns in list(self._calls.items()):
            if turns >= self._turns:
                self._end(call, SLOW)
                continue
            self._calls[call] = turns + 1
            if turns:
                slow.append(call)
        if not slow:
            self._calm_bytes = unseen
        elif unseen - self._calm_bytes > self._budget.limit - self._budget.used:
            for call in slow:
                self._end(call, NO_MEMORY)

    def _end(self, call: GrpcioCall, status: tuple[object, ...]) -> None:
        self.remove(call)
        call.end(*status)  # type: ignore[arg-type]

    def _unseen_bytes(self) -> int:
        """The memory of the process without what the budget counts."""
        resident, shared = map(int, _STATM.read_text().split()[1:3])
        return (resident - shared) * resource.getpagesize() - self._budget.used
