"""A batch takes along at least what was planned for it, and more where that makes nothing late.

Batches take 1, 1.1, 1.2 and 1.4 ms for 1, 2, 4 and 8 rows; the hand-off takes 150 us.
"""

from sluice.batcher.interface.decisions import CompleteRequest, EvictRequest, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
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
    single,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL


def tight_between_two() -> Scheduler:
    """Request 1 runs until 1 ms; 2, 3 and 4 are planned after it, each by itself, and 3 ends in time to the last ns.

    That is why request 4, of the same model as 2, is not in a batch with it, and comes after 3.
    """
    scheduler = serving(spec_of([model("m:1"), model("n:1")]), GAINING)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1])]
    arrivals = arrival(2, 3 * MS), arrival(3, 3_150 * US, "n:1"), arrival(4, 10 * MS)
    assert step(scheduler, 100 * US, *arrivals) == []
    planned = scheduler.dispatcher.fleet.partitions["cpu0"].planned
    assert [(batch.model.config.key, batch.rows) for batch in planned] == [("m:1", 1), ("n:1", 1), ("m:1", 1)]
    return scheduler


def test_a_batch_has_no_more_rows_than_planned_if_that_would_make_another_late() -> None:
    scheduler = tight_between_two()
    assert step(scheduler, MS, completed(1, 0, MS))[-1] == dispatch(2, [2])
    assert step(scheduler, 1_850 * US) == [dispatch(3, [3], model="n:1")]
    step(scheduler, 2 * MS, completed(2, MS, 2 * MS))
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [CompleteRequest(3, Outcome.COMPLETED)]


def test_a_batch_has_more_rows_than_planned_if_there_has_come_to_be_time_for_them() -> None:
    scheduler = tight_between_two()
    # The first batch took 0.15 ms less than expected. A row is expected to take 0.975 ms now, and two 1.1 ms as before.
    assert step(scheduler, 850 * US, completed(1, 0, 850 * US)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [2, 4]),
    ]


def test_what_was_admitted_and_turns_out_late_is_answered_late_or_given_up_as_its_pipeline_says() -> None:
    """They wait for a batch that takes 4 ms instead of 1 ms."""
    pipelines = [single("m:1", Late.SERVE, name="serve:1"), single("m:1", Late.EVICT, name="evict:1")]
    scheduler = serving(spec_of([model("m:1", 1)], pipelines), GAINING)
    step(scheduler, 0, arrival(1, S, "serve:1"))
    assert step(scheduler, 100 * US, arrival(2, 3_200 * US, "serve:1"), arrival(3, 3_300 * US, "evict:1")) == []
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL)]
    # From here on not even an idle partition would have request 3 done in time.
    reason = "the deadline is out of reach"
    (given_up,) = step(scheduler, 2_150_001)
    assert isinstance(given_up, EvictRequest)
    assert (given_up.request, given_up.outcome, given_up.reason) == (3, Outcome.EVICTED_DEADLINE, reason)
    assert step(scheduler, 4 * MS, completed(1, 0, 4 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 5 * MS, completed(2, 4 * MS, 5 * MS)) == [CompleteRequest(2, Outcome.COMPLETED_LATE)]
