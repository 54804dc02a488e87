"""How long arrivals may take the loop at a time, and which of them are refused where it does not come to all.

This is for requests that are rather refused than late. To find places for one of those takes longer than to read it, so
that a server that is asked for too much could do nothing else: it would admit all, and be late with all.
"""

from batcher.decisions import RejectRequest
from batcher.events import RequestArrived
from batcher.outcome import Outcome
from models.units import NS_PER_MS, ns_to_ms

LEAST_NS = NS_PER_MS
"""Time that arrivals may take in any case, before batches are formed and answers taken in."""
TAKEN_SHARE = 32
"""So much of the time that a request has left may be taken by those that are handled with it."""
WAIT_SHARE = 8
"""So much of its time may be over when a request is looked at: as much again is lost at each of its stages."""


def is_over(arrival: RequestArrived, since_ns: int, now_ns: int) -> bool:
    """Whether the arrivals behind this one have to wait, since those up to it were begun with."""
    return now_ns - since_ns > max(LEAST_NS, (arrival.deadline_ns - since_ns) // TAKEN_SHARE)


def refusal(arrival: RequestArrived, arrived_ns: int, now_ns: int) -> RejectRequest | None:
    """The rejection of a request that waits to be looked at for too long; None if it may wait."""
    waited_ns, budget_ns = now_ns - arrived_ns, arrival.deadline_ns - arrived_ns
    if WAIT_SHARE * waited_ns < budget_ns:
        return None
    waited_ms, budget_ms = ns_to_ms(waited_ns), ns_to_ms(budget_ns)
    reason = f"the server is behind: {waited_ms:.1f} of {budget_ms:.1f} ms were over before the request was looked at"
    return RejectRequest(arrival.request, Outcome.REJECTED_DEADLINE, reason, budget_ns)
