"""How long arrivals may take the loop at a time, and which of them are refused where it does not come to all.

This is for requests that are rather refused than late. To find places for one of those takes longer than to read it, so
that a server that is asked for too much could do nothing else: it would admit all, and be late with all.
"""

from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.models.units import NS_PER_MS, ns_to_ms

LEAST_NS = NS_PER_MS
"""So long a turn may be in any case, answers that are taken in included, before batches are formed."""
TAKEN_SHARE = 32
"""One part in so many of the time that a request has left may be spent on what comes before it in its turn."""
MOST_NS = 10 * NS_PER_MS
"""So long a turn may be at most: what else there is waits meanwhile."""
WAIT_SHARE = 8
"""One part in so many of its time may be over when a request is looked at: as much is lost at each of its stages."""


def is_over(arrival: RequestArrived, since_ns: int, now_ns: int) -> bool:
    """Whether the arrivals behind this one are left to the next turn, as this turn, begun at `since_ns`, was long."""
    return now_ns - since_ns > min(max(LEAST_NS, (arrival.deadline_ns - since_ns) // TAKEN_SHARE), MOST_NS)


def refusal(
    arrival: RequestArrived, arrived_ns: int, now_ns: int, waiting: int, most_waiting: int
) -> RejectRequest | None:
    """The rejection of the first of the `waiting` requests, if it waits for too long or they are too many."""
    waited_ns, budget_ns = now_ns - arrived_ns, max(arrival.deadline_ns - arrived_ns, 0)
    if waiting > most_waiting:
        reason = f"{most_waiting} requests wait to be looked at"
        return RejectRequest(arrival.request, Outcome.REJECTED_QUEUE_FULL, reason, waited_ns)
    if WAIT_SHARE * waited_ns < budget_ns:
        return None
    waited_ms, budget_ms = ns_to_ms(waited_ns), ns_to_ms(budget_ns)
    reason = f"the server is behind: {waited_ms:.1f} of {budget_ms:.1f} ms were over before the request was looked at"
    return RejectRequest(arrival.request, Outcome.REJECTED_DEADLINE, reason, waited_ns)
