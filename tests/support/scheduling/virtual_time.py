"""An asyncio loop in virtual time: its clock stands still while there is work, and then jumps to the next timer."""

import asyncio
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.models.units import NS_PER_S

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

_T = TypeVar("_T")

_ROUNDING_NS = 0.01
"""More than the error of a time in seconds as a float, for hours."""
MOST_ROUNDS = 100_000
"""Rounds of the loop at one instant before it counts as stuck."""


class _Selector(selectors.SelectSelector):
    """Advances the virtual time where the loop would sleep.

    What is ready comes in the order of registration, which is the same in every run, as the numbers of files are not.
    """

    elapse: Callable[[float], bool]

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._order: dict[int, int] = {}
        self._rounds = 0

    def register(self, fileobj: "FileDescriptorLike", events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._order[key.fd] = next(self._numbers)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            raise RuntimeError(f"virtual loop: it is stuck, with {MOST_ROUNDS} rounds at one instant")
        if ready:
            return sorted(ready, key=lambda each: self._order[each[0].fd])
        if timeout is None:
            raise RuntimeError("virtual loop: no timer is left, so it would wait for ever")
        if timeout > 0 and self.elapse(timeout):
            self._rounds = 0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock `now_ns` starts at 0."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.elapse = self._elapse
        self.now_ns = 0
        super().__init__(selector)
        # Timers of the current nanosecond are due (asyncio compares with "<"); those of the next one are not.
        # Twice the rounding: whatever is not due is far enough away for the time to move.
        self._clock_resolution = 2 * _ROUNDING_NS / NS_PER_S

    def time(self) -> float:
        return self.now_ns / NS_PER_S

    def clock(self) -> int:
        return self.now_ns

    def at(self, time_ns: int, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        return self.call_at(time_ns / NS_PER_S, callback, *arguments)

    def _elapse(self, seconds: float) -> bool:
        """Advance the time; returns whether it is another nanosecond."""
        before_ns = self.now_ns
        # Up: a timer that is due between two nanoseconds must not find that it is early, and set itself again.
        self.now_ns = math.ceil((self.time() + seconds) * NS_PER_S - _ROUNDING_NS)
        return self.now_ns > before_ns


class VirtualAlarm:
    """The runtime's timer on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._callback: Callable[[], None]

    def start(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def arm(self, due_ns: int | None) -> None:
        self.close()
        if due_ns is not None:
            self._handle = self._loop.at(due_ns, self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def run_virtual(main: Callable[[VirtualLoop], Coroutine[object, object, _T]]) -> _T:
    """Run a coroutine on a new virtual loop."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()
