"""Refusals while the driver's loop is behind, and the time that it takes from requests which are admitted."""

from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.interface.events import LoopDelayed, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.models.units import NS_PER_MS, ns_to_ms

WAIT_SHARE = 8
"""The part of its time that a request may have waited for the loop, as a divisor: each stage loses as much."""
TURN_SHARE = 2
"""The part of a turn that the end of a batch waits for the next one, on average, as a divisor."""
HALF_LIFE_NS = 10 * NS_PER_MS
"""The lag of the loop is forgotten by half in this time."""


class LoopDelay:
    """The delay of the driver's loop, as the loop reports it; once it `is_over`, arrivals need no judgement.

    While arrivals wait for their turn, those at the head are refused that have waited too long, without a search for
    places: that takes longer than reading a request, so all those behind them would be late as well. Their wait counts
    from when the loop fell behind, since a burst is over soon. At most `most_waiting` may wait.
    """

    def __init__(self, most_waiting: int) -> None:
        self.is_over = True
        self._most_waiting = most_waiting
        self._reported_ns = 0
        self._lag_ns = 0
        self._behind_ns: int | None = None
        self._excess = 0

    def delayed(self, event: LoopDelayed, now_ns: int) -> None:
        """Record what the loop reports."""
        self._lag_ns, self._reported_ns = max(event.lag_ns, self._remembered_ns(now_ns)), now_ns
        self._excess = max(event.waiting - self._most_waiting, 0)
        if not event.waiting:
            self._behind_ns = None
        elif self._behind_ns is None:
            self._behind_ns = now_ns
        self.is_over = False

    def judge(self, event: RequestArrived, now_ns: int) -> RejectRequest | int:
        """The time (ns) for which the answer of the next arrival will wait for the loop.

        Its rejection, if it has waited too long itself, or too many are waiting.
        """
        if self._behind_ns is not None and (rejection := self._rejection(event, now_ns, self._behind_ns)) is not None:
            return rejection
        lag_ns = self._remembered_ns(now_ns)
        self.is_over = not lag_ns and self._behind_ns is None
        return lag_ns // TURN_SHARE

    def _rejection(self, event: RequestArrived, now_ns: int, behind_ns: int) -> RejectRequest | None:
        received_ns = event.received_ns or now_ns
        waited_ns, budget_ns = now_ns - received_ns, max(event.deadline_ns - received_ns, 0)
        if self._excess:
            self._excess -= 1
            reason = f"the server is overloaded: {self._most_waiting} requests wait for admission"
            return RejectRequest(event.request, Outcome.REJECTED_QUEUE_FULL, reason, waited_ns)
        if WAIT_SHARE * min(waited_ns, now_ns - behind_ns) < budget_ns:
            return None
        waited_ms, budget_ms = ns_to_ms(waited_ns), ns_to_ms(budget_ns)
        reason = f"the server is overloaded: the request had already waited {waited_ms:.1f} of its {budget_ms:.1f} ms"
        return RejectRequest(event.request, Outcome.REJECTED_DEADLINE, reason, waited_ns)

    def _remembered_ns(self, now_ns: int) -> int:
        return self._lag_ns >> (now_ns - self._reported_ns) // HALF_LIFE_NS
