import math

import pytest

from sluice.models.errors import RequestError
from sluice.models.slo import deadline_ns

MS = 1_000_000


@pytest.mark.parametrize(
    ("request_ms", "pipeline_ms", "transport_ns", "expected"),
    [
        (None, None, None, 1_000),
        (None, 50, None, 50),
        (20, 50, None, 20),
        (80, 50, None, 50),
        (5_000, None, None, 5_000),
        (None, None, 30 * MS, 30),
        (20, 50, 10 * MS, 10),
        (20, 50, 90 * MS, 20),
        (20, None, -5 * MS, -5),
        (0.5, None, None, 0.5),
        (10**400, None, None, 86_400_000),
    ],
)
def test_the_soonest_wins(
    request_ms: object, pipeline_ms: float | None, transport_ns: int | None, expected: float
) -> None:
    assert deadline_ns(7, request_ms, pipeline_ms, transport_ns, 1_000.0) == 7 + expected * MS


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0, -1, -0.5, True, "20", [20], {}])
def test_an_objective_that_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(
        RequestError, match=r"^parameter 'slo_ms': expected a finite number of milliseconds above 0, got"
    ):
        deadline_ns(0, value, None, None, 1_000.0)


def test_the_message_is_short_whatever_was_sent() -> None:
    with pytest.raises(RequestError) as refused:
        deadline_ns(0, "x" * 10_000, None, None, 1_000.0)
    assert len(str(refused.value)) < 200
