"""The requests of a batch as models see them, and the errors that models give them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import RequestArrived
from sluice.gateway.observability.traces.context import TraceContext
from sluice.models.backends.requests import FailureCode, RequestFailure, RequestPart
from sluice.models.errors import PartitionError
from sluice.models.units import NS_PER_US

SHOWS_REQUESTS = "python"
"""The backend whose models see the requests of a batch."""


class RequestRecord(Protocol):
    """The record of a request (see `Trace`)."""

    client_id: str
    arrival: RequestArrived

    def context_in(self, batch: int, stage: int) -> TraceContext:
        """The context of its trace for what is called while a stage of it is in a batch."""
        ...


class CallingSubmission(Protocol):
    """A request as models see it (see `Submission`)."""

    @property
    def trace(self) -> RequestRecord:
        """Its record."""
        ...

    parameters: str
    failure: FailureCode | None


FindSubmission = Callable[[int], CallingSubmission | None]
"""The submission of a request by its number; None if it has its outcome."""


def no_submission(request: int) -> CallingSubmission | None:
    """Find nothing."""
    del request
    return None


def request_parts(batch: DispatchBatch, find: FindSubmission) -> tuple[RequestPart, ...]:
    """The requests of a batch as its model sees them."""
    parts: list[RequestPart] = []
    for position, member in enumerate(batch.members):
        submission = find(member.request)
        step = batch.sequences[position].step if batch.sequences else None  # each has one row
        if submission is None:
            parts.append(RequestPart(member.rows, sequence=step))
        else:
            arrival = submission.trace.arrival
            timeout_us = (arrival.expires_ns - arrival.received_ns) // NS_PER_US if arrival.expires_ns else 0
            client_id, parameters = submission.trace.client_id, submission.parameters
            trace = submission.trace.context_in(batch.batch, member.stage)
            traceparent = trace.traceparent if trace.trace_id else ""
            parts.append(RequestPart(member.rows, client_id, parameters, step, timeout_us, traceparent, trace.state))
    return tuple(parts)


def member_failures(
    batch: DispatchBatch, errors: Sequence[RequestFailure], find: FindSubmission
) -> tuple[tuple[int, str], ...]:
    """The errors that a model gave members of a batch; raises PartitionError for others."""
    for failure in errors:
        if not 0 <= failure.position < len(batch.members):
            raise PartitionError(
                f"batch {batch.batch} has an error of request {failure.position}, expected one of "
                f"{len(batch.members)} requests"
            )
        if (submission := find(batch.members[failure.position].request)) is not None:
            submission.failure = failure.code
    return tuple([(failure.position, f"{batch.model}: {failure.message}") for failure in errors])
