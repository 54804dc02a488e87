"""Promised work is counted in the backlogs of groups from the admission of a request to the start of its stages."""

from sluice.batcher.prediction.backlog import promise, release, release_batch, settle_rows
from sluice.batcher.state import PartitionGroup, Request, Work
from tests.support.scheduling.builders import chain
from tests.unit.batcher.prediction.pipelines import Pipelines, entry_of, request_of

FIRST_NS, SECOND_NS = 100, 30


def promised(*rows: int) -> tuple[PartitionGroup, list[Request]]:
    """A group with the promised work of requests of two stages, which take 100 ns and 30 ns a row."""
    pipelines = Pipelines({"a": 1.0, "b": 1.0}, chain("a", "b"))
    (group,) = pipelines.fleet.groups
    pipeline = pipelines.by_name["chain:1"]
    pipeline.work = Work((((group, FIRST_NS),), ((group, SECOND_NS),)), (((group, FIRST_NS),), ((group, 60),)))
    requests = [request_of(pipeline, number, count) for number, count in enumerate(rows)]
    for request in requests:
        promise(request.work.total, request.rows)
    return group, requests


def test_a_request_promises_the_work_of_all_its_rows_in_all_its_stages() -> None:
    group, _ = promised(2, 1)
    assert group.backlog_ns == 3 * (FIRST_NS + SECOND_NS)


def test_a_stage_releases_its_work_once() -> None:
    group, (request,) = promised(2)
    release(request, 0)
    assert group.backlog_ns == 2 * SECOND_NS
    release(request, 0)
    assert group.backlog_ns == 2 * SECOND_NS


def test_known_rows_replace_the_expected_work() -> None:
    group, (request,) = promised(4)
    settle_rows(request, 1, 1)
    assert group.backlog_ns == 4 * FIRST_NS + 60
    release(request, 1)
    assert group.backlog_ns == 4 * FIRST_NS


def test_a_batch_releases_the_work_of_each_of_its_requests() -> None:
    group, requests = promised(2, 1)
    release(requests[1], 1)
    release_batch([entry_of(requests[0]), entry_of(requests[1]), entry_of(requests[0], 1), entry_of(requests[1], 1)])
    assert group.backlog_ns == 0


def test_a_batch_releases_nothing_of_a_stage_that_was_released() -> None:
    group, (request,) = promised(2)
    release(request, 0)
    release_batch([entry_of(request)])
    assert group.backlog_ns == 2 * SECOND_NS
