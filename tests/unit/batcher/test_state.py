"""Records: what an entry tells of its request."""

import pytest

from sluice.batcher.state import Entry, PlannedBatch, Request
from tests.support.scheduling.builders import GAINING, S, arrival, chain, model, serving, spec_of


@pytest.mark.parametrize(("rows", "expected"), [(0, 0), (1, 1), (2.2, 3)])
def test_what_is_planned_counts_in_whole_rows(rows: float, expected: int) -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    fleet = scheduler.dispatcher.fleet
    request = Request(arrival(1, S), scheduler.pipelines["m:1"])
    if rows:
        batch = PlannedBatch(fleet.partitions["cpu0"], fleet.models["m:1"], ("m:1", ""), S, 1.0, 1.0, rows=rows)
        request.places = [(batch, rows)]
    assert Entry(request, 0, 1, None, ("m:1", ""), S, 0, 1).planned_rows == expected


def test_a_later_stage_follows_others() -> None:
    scheduler = serving(spec_of([model("a:1"), model("b:1")], [chain("a:1", "b:1")]), GAINING)
    request = Request(arrival(1, S, "chain:1"), scheduler.pipelines["chain:1"])
    assert [Entry(request, stage, 1, None, ("a:1", ""), S, 0, 1).follows for stage in (0, 1)] == [False, True]
