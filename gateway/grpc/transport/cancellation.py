"""Finds out whether the clients of calls still wait, for those calls that last."""

import asyncio

from sluice.gateway.grpc.transport.call import ServerCall

UNWATCHED_S = 0.05
"""How long a call is not watched: that takes about a tenth of its processor time, and most are over by then."""


class CancellationWatch:
    """Watches each call that is still open when it has been for `UNWATCHED_S`, or for up to twice as long.

    There is one timer, which runs while there are calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new: list[ServerCall] = []
        self._older: list[ServerCall] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: ServerCall) -> None:
        """Watch a call that has just come, if it lasts."""
        self._new.append(call)
        if self._timer is None:
            self._timer = self._loop.call_later(UNWATCHED_S, self._turn)

    def stop(self) -> None:
        """Watch all that are open at once."""
        if self._timer is not None:
            self._timer.cancel()
        for call in (*self._older, *self._new):
            call.watch()
        self._older, self._new, self._timer = [], [], None

    def _turn(self) -> None:
        due, self._older, self._new = self._older, self._new, []
        self._timer = self._loop.call_later(UNWATCHED_S, self._turn) if self._older else None
        for call in due:  # last of all: should one of them fail, the next turn comes all the same
            call.watch()
