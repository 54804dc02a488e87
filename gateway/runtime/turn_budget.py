"""Limits the time for arrivals in one turn of the loop, and refuses arrivals that wait too long for their turn.

This applies to requests that should be refused instead of late. Finding places for a request takes longer than reading
it, so an overloaded server would do nothing else: it would admit all requests, and answer all of them late.
"""

from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.models.units import NS_PER_MS, ns_to_ms

MIN_TURN_NS = NS_PER_MS
"""A turn may always last this long before batches are formed, completions included."""
TURN_SHARE = 32
"""The part of a request's remaining time that may pass in the turn before it, as a divisor."""
MAX_TURN_NS = 10 * NS_PER_MS
"""A turn is never longer than this: all other work waits meanwhile."""
WAIT_SHARE = 8
"""The part of its time that a request may have waited for its turn, as a divisor: each stage loses as much."""


def is_spent(arrival: RequestArrived, since_ns: int, now_ns: int) -> bool:
    """True if the arrivals behind this one are left to the next turn, as this turn began long ago, at `since_ns`."""
    return now_ns - since_ns > min(max(MIN_TURN_NS, (arrival.deadline_ns - since_ns) // TURN_SHARE), MAX_TURN_NS)


def refusal(
    arrival: RequestArrived, arrived_ns: int, now_ns: int, waiting: int, most_waiting: int
) -> RejectRequest | None:
    """The rejection of the first of the `waiting` requests, if it has waited too long or too many are waiting."""
    waited_ns, budget_ns = now_ns - arrived_ns, max(arrival.deadline_ns - arrived_ns, 0)
    if waiting > most_waiting:
        reason = f"the server is overloaded: {most_waiting} requests wait for admission"
        return RejectRequest(arrival.request, Outcome.REJECTED_QUEUE_FULL, reason, waited_ns)
    if WAIT_SHARE * waited_ns < budget_ns:
        return None
    waited_ms, budget_ms = ns_to_ms(waited_ns), ns_to_ms(budget_ns)
    reason = f"the server is overloaded: the request had already waited {waited_ms:.1f} of its {budget_ms:.1f} ms"
    return RejectRequest(arrival.request, Outcome.REJECTED_DEADLINE, reason, waited_ns)
