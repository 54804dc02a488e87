"""Notices cancelled calls, for calls that last long enough."""

import asyncio

from sluice.gateway.grpc.transport.grpcio.call import GrpcioCall

UNWATCHED_S = 0.05
"""The time for which a call is not watched.

Watching takes about a tenth of a call's processor time, and most calls end sooner.
"""


class CancellationWatch:
    """Watches every call that is open for longer than `UNWATCHED_S`, or up to twice as long.

    One timer serves all calls and runs while there are any.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new: list[GrpcioCall] = []
        self._older: list[GrpcioCall] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: GrpcioCall) -> None:
        """Watch a new call if it lasts."""
        self._new.append(call)
        if self._timer is None:
            self._timer = self._loop.call_later(UNWATCHED_S, self._turn)

    def stop(self) -> None:
        """Watch all open calls at once."""
        if self._timer is not None:
            self._timer.cancel()
        for call in (*self._older, *self._new):
            call.watch()
        self._older, self._new, self._timer = [], [], None

    def _turn(self) -> None:
        due, self._older, self._new = self._older, self._new, []
        self._timer = self._loop.call_later(UNWATCHED_S, self._turn) if self._older else None
        for call in due:  # last: if one of them fails, the next turn is scheduled already
            call.watch()
