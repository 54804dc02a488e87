"""Turns of a driver's loop: how long one may take arrivals, and when the loop is behind.

Finding places for a request takes longer than reading it, so an overloaded loop would do nothing else: it would admit
all requests, and answer all of them late. So arrivals are left to the next turn, and the scheduler hears of the delay.
"""

from sluice.batcher.interface.events import LoopDelayed, RequestArrived
from sluice.models.units import NS_PER_MS

MIN_TURN_NS = NS_PER_MS
"""A turn may always last this long before batches are formed, completions included; a shorter one delays nothing."""
TURN_SHARE = 32
"""The part of a request's remaining time that may pass in the turn before it, as a divisor."""
MAX_TURN_NS = 10 * NS_PER_MS
"""A turn never takes arrivals for longer than this: all other work waits meanwhile."""


def is_spent(arrival: RequestArrived, since_ns: int, now_ns: int) -> bool:
    """True if the arrivals behind this one are left to the next turn, as this turn took long, from `since_ns` on."""
    spent_ns = now_ns - since_ns
    if spent_ns <= MIN_TURN_NS:
        return False
    return spent_ns > MAX_TURN_NS or spent_ns > (arrival.deadline_ns - since_ns) // TURN_SHARE


class LoopTurns:
    """The turns of a loop; tells what to report to the scheduler."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._ended_ns = 0
        self._left = 0
        self._delayed = False

    def begin(self, began_ns: int) -> LoopDelayed | None:
        """Begin a turn that reads what has come by `began_ns`; returns what the scheduler has to know first."""
        # Where the loop had nothing to do in between, nothing waits for it any more.
        was_idle = not self._left and began_ns - self._ended_ns > MIN_TURN_NS
        lag_ns = 0 if was_idle else self._ended_ns - self._began_ns
        self._began_ns = began_ns
        if self._left or lag_ns > MIN_TURN_NS:
            self._delayed = True
            return LoopDelayed(lag_ns, self._left)
        if self._delayed:
            self._delayed = False
            return LoopDelayed(0, 0)
        return None

    def end(self, ended_ns: int, left: int) -> None:
        """End a turn that has left some arrivals."""
        self._ended_ns, self._left = ended_ns, left
