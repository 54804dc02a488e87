import numpy as np
import pytest

from sluice.loadgen.records.record import MAX_REASONS, NO_OBJECTIVE, Record, Status, objective_ns
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError


def counted(*reasons: str) -> dict[str, int]:
    record = Record.of(Schedule(np.zeros(0, np.int64), np.zeros(0, np.int64)))
    for reason in reasons:
        record.count_reason(reason)
    return record.reasons


def test_reasons_that_differ_in_quantities_only_are_counted_as_the_first() -> None:
    over = "HTTP 503: 16.9 of 50.0 ms were over"
    assert counted(over, "HTTP 503: 17 of 50.0 ms were over", over, "costs 6.487e-07", "costs 2") == {
        over: 3,
        "costs 6.487e-07": 2,
    }


def test_status_codes_and_names_tell_reasons_apart() -> None:
    reasons = (
        "HTTP 429: busy",
        "HTTP 503: busy",
        "m:1 is away",
        "m:2 is away",
        "no cpu0",
        "no cpu1",
        "no mps-20",
        "no mps-40",
    )
    assert counted(*reasons) == dict.fromkeys(reasons, 1)


def test_no_more_reasons_are_counted_apart_than_a_report_has_room_for() -> None:
    reasons = [f"{name} took 1 ms" for name in "abcdefghij"]
    known = dict.fromkeys(reasons[:MAX_REASONS], 1)
    assert counted(*reasons, "a took 2 ms", "j took 2 ms") == known | {"a took 1 ms": 2, "other reasons": 3}


def test_records_are_joined_in_the_given_order_of_their_rows() -> None:
    even, odd = (
        Record.of(Schedule(np.array(due), np.array(samples)), slo_ns=5)
        for due, samples in (([0, 20, 40], [7, 8, 9]), ([10, 30], [1, 2]))
    )
    even.status[:] = Status.OK
    odd.status[:] = Status.ERROR
    even.stages[1] = "small"
    odd.stages[0] = "large"
    even.count_reason("busy", 2)
    odd.count_reason("busy")
    joined = Record.joined([even, odd], np.array([0, 3, 1, 4, 2]))
    assert joined.due_ns.tolist() == [0, 10, 20, 30, 40]
    assert joined.sample.tolist() == [7, 1, 8, 2, 9]
    assert joined.status.tolist() == [Status.OK, Status.ERROR, Status.OK, Status.ERROR, Status.OK]
    assert joined.slo_ns.tolist() == [5] * 5
    assert joined.stages == {1: "large", 2: "small"}
    assert joined.reasons == {"busy": 3}


def test_an_objective_has_room_in_its_column() -> None:
    assert [objective_ns(None), objective_ns(0.5), objective_ns(1e9)] == [NO_OBJECTIVE, 500_000, 10**15]
    with pytest.raises(ConfigError, match=r"objective: expected at most 1e\+09 ms, got 1e\+14 ms"):
        objective_ns(1e14)
