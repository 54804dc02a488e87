"""Where a driver is seen to be behind, places are longer, so that no more is admitted than it can do."""

from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import MS, ONE, US, S, arrival, completed, model, serving, single, spec_of, step


def hard() -> Scheduler:
    """A model that takes 1 ms, 1.15 ms with the hand-off, and gains nothing from batching."""
    return serving(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)]), ONE)


def run(scheduler: Scheduler, request: int, way_ns: int) -> None:
    """One request at a time, whose batch is on its way for so long, there and back."""
    now_ns = request * S
    assert len(step(scheduler, now_ns, arrival(request, now_ns + 500 * MS))) == 1
    ended_ns = now_ns + 1 * MS
    step(scheduler, ended_ns + way_ns, completed(request, now_ns, ended_ns))


def refused(scheduler: Scheduler, request: int, now_ns: int, within_ns: int) -> str:
    """Why a request is refused, "" if it is not."""
    first, *_ = step(scheduler, now_ns, arrival(request, now_ns + within_ns))
    return first.reason if isinstance(first, RejectRequest) else ""


def test_places_are_as_long_as_hand_offs_are_seen_to_make_them() -> None:
    scheduler = hard()
    for request in range(1, 61):
        run(scheduler, request, 1000 * US)
    # The first one that is refused has what was seen decay by half, as all that is learned does once a second.
    assert refused(scheduler, 61, 61 * S, 1300 * US) == "could be complete in 1.5 ms at the soonest, 1.3 ms are left"
    assert refused(scheduler, 62, 61 * S, 1450 * US) == "could be complete in 1.5 ms at the soonest, 1.4 ms are left"
    assert refused(scheduler, 63, 61 * S, 1500 * US) == ""


def test_one_halt_of_the_machine_does_not_count_for_much() -> None:
    scheduler = hard()
    run(scheduler, 1, 400 * MS)
    assert refused(scheduler, 2, 2 * S, 1150 * US) == ""


def test_what_was_seen_is_forgotten_where_nothing_is_admitted_for_it() -> None:
    scheduler = hard()
    for request in range(1, 61):
        run(scheduler, request, 1000 * US)
    reported = [refused(scheduler, request, request * S, 1150 * US) for request in range(61, 64)]
    assert reported == [
        "could be complete in 1.5 ms at the soonest, 1.1 ms are left",
        "could be complete in 1.2 ms at the soonest, 1.1 ms are left",
        "",
    ]
