"""Pipelines that contend for a model leave rows to each other by their weights."""

import pytest

from sluice.batcher.prediction.fair_share import beyond_share, rows_ahead
from sluice.batcher.prediction.pipeline_times import predict
from tests.support.scheduling.builders import MS, S, single
from tests.unit.batcher.prediction.pipelines import Pipelines, entry_of, request_of


class Contended:
    """Two pipelines, `ours` and `theirs`, of one model that takes 1 ms a row."""

    def __init__(self, weight: float = 1.0) -> None:
        pipelines = Pipelines({"m": 1.0}, single("m", name="ours"), single("m", name="theirs", weight=weight))
        self.ours, self.theirs = pipelines.by_name.values()
        self.model = pipelines.fleet.models["m"]
        self.queue = pipelines.fleet.queues.default[self.model]
        for pipeline in (self.ours, self.theirs):
            predict(pipeline, 0)

    def wait(self, ours: int = 0, theirs: int = 0) -> None:
        """Queue rows of both pipelines, one an entry, all with a deadline of 1 s."""
        for sequence, pipeline in enumerate([self.ours] * ours + [self.theirs] * theirs):
            entry = entry_of(request_of(pipeline, deadline_ns=S), sequence=sequence)
            self.queue.push(entry, S, pipeline.config.weight)

    def ahead(self, left_ns: int = 0, now_ns: int = 0) -> float:
        return rows_ahead(self.ours, self.model, self.queue, 2 * S, left_ns, now_ns)


@pytest.mark.parametrize(("weight", "ahead"), [(1.0, 4), (2.0, 6), (0.5, 3), (9.0, 8)])
def test_the_rows_of_others_count_as_far_as_their_weight_allows(weight: float, ahead: float) -> None:
    contended = Contended(weight)
    contended.wait(ours=2, theirs=6)
    assert contended.ahead() == ahead


def test_rows_of_others_that_will_arrive_count_as_well() -> None:
    contended = Contended()
    contended.wait(ours=4, theirs=1)
    assert contended.ahead() == 5
    contended.theirs.inflow.add(1, S)
    # One row came within a quarter of a second, so two come within half a second.
    assert contended.ahead(S // 2, S) == 7


def test_a_pipeline_without_waiting_rows_waits_for_nobody() -> None:
    contended = Contended()
    contended.wait(theirs=6)
    assert contended.ahead() == 0


def under_way(rows: int, asked: int) -> Contended:
    """Rows of ours under way, and rows of theirs that have just arrived, at 1 s."""
    contended = Contended()
    contended.ours.rows_under_way = rows
    if asked:
        contended.theirs.asked.add(asked, S)
    return contended


def test_a_pipeline_with_nothing_under_way_may_always_have_a_request() -> None:
    assert beyond_share(under_way(0, 100).ours, 100, MS, S) is None


def test_a_pipeline_whose_rivals_never_had_requests_has_the_model_to_itself() -> None:
    contended = under_way(40, 0)
    assert beyond_share(contended.ours, 10, 10 * MS, S) is None


def test_a_request_beyond_the_share_names_the_model_and_the_time_to_completion() -> None:
    contended = under_way(9, 250)
    # In the 10 ms before it starts, 10 rows of theirs come: with 10 of ours, the model takes 20 ms.
    assert beyond_share(contended.ours, 1, 11 * MS, S) == (contended.model, 21 * MS)
    assert beyond_share(contended.ours, 1, 31 * MS, S) is None
