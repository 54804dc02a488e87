from sluice.batcher.interface.decisions import Member
from sluice.batcher.policies.no_batching import NoBatchingSettings
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    US,
    S,
    arrival,
    completed,
    dispatch,
    model,
    serving,
    spec_of,
    step,
)


def test_every_request_is_a_batch_of_its_own_in_order_of_arrival() -> None:
    scheduler = serving(spec_of([model("m:1", 8, NoBatchingSettings())]), GAINING)
    assert step(scheduler, 0, arrival(1, 90 * MS, rows=2), arrival(2, S), arrival(3, 50 * MS)) == [
        dispatch(1, [Member(1, 0, 2)])
    ]
    assert scheduler.next_wakeup_ns() == 950 * US
    assert step(scheduler, 950 * US) == [dispatch(2, [2])]
    step(scheduler, 1100 * US, completed(1, 0, 1100 * US))
    assert scheduler.next_wakeup_ns() == 1950 * US
    assert step(scheduler, 1950 * US) == [dispatch(3, [3])]
