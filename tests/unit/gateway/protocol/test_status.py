"""The table of status codes is complete and says what clients expect."""

import grpc
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.status_settings import StatusSettings
from sluice.gateway.protocol.status import grpc_status, http_status, outcome_error, retry_after_s
from sluice.models import errors

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("error", "http", "code", "retry"),
    [
        (errors.ModelNotFound("m"), 404, CODE.NOT_FOUND, None),
        (errors.VersionNotFound("m"), 404, CODE.NOT_FOUND, None),
        (errors.BadTensor("m"), 400, CODE.INVALID_ARGUMENT, None),
        (errors.CapacityTaken("m"), 409, CODE.FAILED_PRECONDITION, None),
        (errors.UnsupportedRequest("m"), 501, CODE.UNIMPLEMENTED, None),
        (errors.RejectedError("m", 3), 503, CODE.UNAVAILABLE, 3),
        (errors.EvictedError("m"), 503, CODE.UNAVAILABLE, 1),
        (errors.TooManyRequests("m", 3), 429, CODE.RESOURCE_EXHAUSTED, 3),
        (errors.TimeoutExpired("m"), 504, CODE.DEADLINE_EXCEEDED, 1),
        (errors.RejectedError("m", 0), 503, CODE.UNAVAILABLE, 1),
        (errors.RejectedError("m", None), 503, CODE.UNAVAILABLE, None),
        (errors.BackendUnavailable("m"), 503, CODE.UNAVAILABLE, 1),
        (errors.BackendFailed("m"), 500, CODE.INTERNAL, None),
        (errors.CancelledError("m"), 400, CODE.CANCELLED, None),
        (ValueError("m"), 500, CODE.INTERNAL, None),
    ],
)
def test_errors_have_one_status_in_each_protocol(
    error: Exception, http: int, code: grpc.StatusCode, retry: int | None
) -> None:
    assert (http_status(error), grpc_status(error), retry_after_s(error)) == (http, code, retry)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.answered])
def test_every_outcome_without_answer_is_an_error_with_a_sentence(outcome: Outcome) -> None:
    assert str(outcome_error(outcome, "", 0))


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.REJECTED_QUEUE_FULL, 429),
        (Outcome.REJECTED_MEMORY, 429),
        (Outcome.REJECTED_DEADLINE, 429),
        (Outcome.EVICTED_DEADLINE, 504),
        (Outcome.REJECTED_DRAINING, 503),
        (Outcome.REJECTED_UNAVAILABLE, 503),
        (Outcome.FAILED_BACKEND, 500),
    ],
)
def test_overload_and_expiry_may_have_statuses_of_their_own(outcome: Outcome, status: int) -> None:
    error = outcome_error(outcome, "", 2, StatusSettings(overload=429, expired=504))
    assert (http_status(error), str(error)) == (status, str(outcome_error(outcome, "", 2)))
