"""Outcomes: how a request ended. Each request gets exactly one; the value is also the metric label."""

import enum


class Outcome(enum.StrEnum):
    """The closed list of ways a request can end."""

    COMPLETED = "completed"
    COMPLETED_LATE = "completed_late"
    REJECTED_DEADLINE = "rejected_deadline"
    REJECTED_COST = "rejected_cost"
    REJECTED_QUEUE_FULL = "rejected_queue_full"
    REJECTED_MEMORY = "rejected_memory"
    REJECTED_UNAVAILABLE = "rejected_unavailable"
    REJECTED_DRAINING = "rejected_draining"
    REJECTED_SEQUENCE = "rejected_sequence"
    EVICTED_DEADLINE = "evicted_deadline"
    CANCELLED_CLIENT = "cancelled_client"
    FAILED_BACKEND = "failed_backend"
    FAILED_WORKER_LOST = "failed_worker_lost"
    FAILED_UNAVAILABLE = "failed_unavailable"

    @property
    def answered(self) -> bool:
        """True if the client gets tensors."""
        return self in ANSWERED


ANSWERED = (Outcome.COMPLETED, Outcome.COMPLETED_LATE)
"""The outcomes of requests whose clients get tensors."""
