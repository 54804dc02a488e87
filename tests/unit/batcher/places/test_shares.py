"""Fair shares: who asks for more than its share does not take the places of those who ask for less."""

import msgspec
import pytest

from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, RejectRequest, Settlement
from sluice.batcher.interface.events import AnyEvent, Confidences, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.places.shares import FairShares, fair_shares
from sluice.batcher.prediction.pipeline_times import predict
from sluice.batcher.state import PipelineState
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import GAINING, MS, ONE, US, S, arrival, chain, model, serving, single, spec_of


@pytest.mark.parametrize(
    ("demands", "weights", "whole", "shares", "spare"),
    [
        pytest.param({}, {}, 1.0, {}, 1.0, id="nobody asks"),
        pytest.param({"a": 0.25, "b": 0.5}, {"a": 1, "b": 1}, 1.0, {"a": 0.25, "b": 0.5}, 0.25, id="enough for all"),
        pytest.param({"a": 2, "b": 3}, {"a": 1, "b": 1}, 1.0, {"a": 0.5, "b": 0.5}, 0, id="both ask for more"),
        pytest.param({"a": 2, "b": 3}, {"a": 3, "b": 1}, 1.0, {"a": 0.75, "b": 0.25}, 0, id="by weight"),
        pytest.param(
            {"a": 0.25, "b": 0.5, "c": 2},
            {"a": 1, "b": 1, "c": 1},
            1.0,
            {"a": 0.25, "b": 0.375, "c": 0.375},
            0,
            id="what a modest one leaves is divided",
        ),
        pytest.param({"a": 0.125, "b": 1}, {"a": 1, "b": 1}, 0.5, {"a": 0.125, "b": 0.375}, 0, id="half to divide"),
    ],
)
def test_the_modest_get_what_they_ask_for_and_the_others_divide_the_rest(
    demands: dict[str, float], weights: dict[str, float], whole: float, shares: dict[str, float], spare: float
) -> None:
    assert fair_shares(demands, weights, whole) == (shares, spare)


class Machine:
    """Batches take what the table says; the outcomes of requests are kept by their pipeline and client."""

    def __init__(self, table: LatencyTable, max_batch: int, *pipelines: PipelineConfig) -> None:
        self._table = table
        self._arrivals: list[tuple[int, RequestArrived]] = []
        self._sources: list[str] = []
        self.outcomes: dict[str, list[Outcome]] = {}
        self.scheduler = serving(spec_of([model("m:1", max_batch)], pipelines), table)

    def batch_ns(self, batch: DispatchBatch) -> int:
        return next(ns for rows, ns in self._table.cells if batch.rows <= rows or rows == self._table.cells[-1][0])

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return ()

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()

    def sends(
        self, pipeline: str, gap_us: int, left_us: int, until_us: int, client: str = "", after_us: int = 0
    ) -> None:
        """Requests of one row every `gap_us`, each with `left_us` to its deadline."""
        self._arrivals += [
            (at_us * US, msgspec.structs.replace(arrival(0, (at_us + left_us) * US, pipeline), client=client))
            for at_us in range(after_us, until_us, gap_us)
        ]

    def run(self) -> None:
        ordered = sorted(self._arrivals, key=lambda each: each[0])
        self._sources = [event.client or event.pipeline for _, event in ordered]
        self.outcomes = {source: [] for source in self._sources}
        numbered = [(at, msgspec.structs.replace(event, request=number)) for number, (at, event) in enumerate(ordered)]
        Simulator(self.scheduler, self, self._observe).run(numbered)

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Settlement | RejectRequest):
                self.outcomes[self._sources[decision.request]].append(decision.outcome)

    def in_time(self, source: str) -> float:
        outcomes = self.outcomes[source]
        return outcomes.count(Outcome.COMPLETED) / len(outcomes)


def test_a_pipeline_that_asks_for_too_much_keeps_out_no_modest_one() -> None:
    machine = Machine(ONE, 1, single("m:1", name="hog:1"), single("m:1", name="modest:1"))
    # The partition serves a row each ms. One pipeline asks for twice that, the other for a quarter.
    machine.sends("hog:1", 500, 20_000, 400_000)
    machine.sends("modest:1", 4000, 20_000, 400_000)
    machine.run()
    assert machine.in_time("modest:1") > 0.9
    # The rest is the hog's: three quarters of what can be served, which is three eighths of what it asks for.
    assert 0.33 < machine.in_time("hog:1") < 0.4
    assert Outcome.COMPLETED_LATE not in machine.outcomes["hog:1"]


def two_pipelines(*gaps_us: float) -> tuple[FairShares, list[PipelineState]]:
    """Two pipelines that share a partition, which serves a row each ms; a row of each comes as often as given."""
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1", name="a:1"), single("m:1", name="b:1")]), ONE)
    shares, pipelines = FairShares(), list(scheduler.pipelines.values())
    for pipeline, gap_us in zip(pipelines, gaps_us, strict=True):
        predict(pipeline, 150 * US)
        shares.add(pipeline)
        pipeline.row_gap_ns, pipeline.last_row_ns = gap_us * US, S
    return shares, pipelines


def renewed(shares: FairShares, pipeline: PipelineState, now_ns: int) -> list[PipelineState]:
    """The pipelines that are bound once a request has come."""
    pipeline.last_row_ns = now_ns
    shares.start_ns(arrival(1, now_ns + S, pipeline.config.name), pipeline, now_ns)
    return list(shares.bound)


@pytest.mark.parametrize(
    ("gap_us", "is_bound"),
    [
        pytest.param(1 / 0.49e-3, False, id="less than its half"),
        pytest.param(1 / 0.549e-3, False, id="little more"),
        pytest.param(1 / 0.551e-3, True, id="more than a tenth more"),
    ],
)
def test_a_pipeline_is_bound_if_it_asks_for_clearly_more_than_its_share(gap_us: float, is_bound: bool) -> None:
    """The other one asks for four fifths of the partition, and has half of it as well."""
    shares, (pipeline, hog) = two_pipelines(gap_us, 1250)
    assert renewed(shares, hog, S) == ([pipeline, hog] if is_bound else [hog])


def test_a_pipeline_that_asks_for_more_all_at_once_is_bound_only_if_it_goes_on() -> None:
    """In 10 ms a rate moves by a twenty-fifth of the difference: from half a row each ms to 0.52, 0.54 and 0.56."""
    shares, (pipeline, hog) = two_pipelines(2000, 1250)
    assert renewed(shares, pipeline, S) == [hog]
    pipeline.row_gap_ns = 1000 * US
    for after_ms, bound in ((10, [hog]), (20, [hog]), (30, [pipeline, hog])):
        hog.last_row_ns = S + after_ms * MS
        assert renewed(shares, pipeline, S + after_ms * MS) == bound


def test_a_pipeline_that_was_silent_for_a_second_is_counted_by_what_it_asks_for_now() -> None:
    shares, (pipeline, hog) = two_pipelines(100_000, 1250)
    assert renewed(shares, pipeline, S) == []
    assert renewed(shares, hog, 2 * S) == []
    shares.add(pipeline)
    pipeline.row_gap_ns = 1000 * US
    assert renewed(shares, pipeline, 2 * S + 10 * MS) == [hog, pipeline]


def test_a_pipeline_that_is_bound_leaves_the_others_time_before_its_deadline() -> None:
    """A batch of the other one takes 1 ms; at most it is half of the time to the deadline that is not its share."""
    shares, (modest, hog) = two_pipelines(10_000, 500)
    assert renewed(shares, modest, S) == [hog]
    (group,) = hog.expected_runs.popitem()[0].groups
    assert shares.left_ns(arrival(1, S + 100 * MS, "b:1"), hog, group, S) == MS
    assert shares.left_ns(arrival(1, S + MS, "b:1"), hog, group, S) == 65 * US
    assert shares.left_ns(arrival(1, S + 100 * MS, "a:1"), modest, group, S) == 0


def test_rows_under_way_are_ahead_of_others_only_with_the_stages_that_they_have_yet_to_run() -> None:
    hog = chain("m:1", "m:1", slo_ns=S)
    scheduler = serving(spec_of([model("m:1", 1)], [hog, single("m:1", name="modest:1")]), ONE)
    shares, (pipeline, modest) = FairShares(), list(scheduler.pipelines.values())
    for each, gap_us in ((pipeline, 500), (modest, 10_000)):
        predict(each, 150 * US)
        shares.add(each)
        each.row_gap_ns, each.last_row_ns = gap_us * US, S
    assert renewed(shares, pipeline, S) == [pipeline]

    def waits_ns(rows: list[int]) -> int:
        pipeline.planned_rows = rows
        return shares.start_ns(arrival(1, 2 * S, "chain:1"), pipeline, S) - S

    # A row takes 1 ms in each stage, and the new one takes 2 ms.
    alone_ns = waits_ns([0, 0])
    assert waits_ns([3, 3]) == pytest.approx(4 * alone_ns, rel=1e-6)
    assert waits_ns([0, 3]) == pytest.approx(2.5 * alone_ns, rel=1e-6)


def test_two_pipelines_that_ask_for_too_much_get_as_much_as_they_weigh() -> None:
    pipelines = [single("m:1", name="heavy:1", weight=3), single("m:1", name="light:1")]
    machine = Machine(ONE, 1, *pipelines)
    machine.sends("heavy:1", 500, 20_000, 400_000)
    machine.sends("light:1", 500, 20_000, 400_000)
    machine.run()
    heavy, light = machine.in_time("heavy:1"), machine.in_time("light:1")
    assert 0.45 < heavy + light <= 0.53
    assert 2.2 < heavy / light < 4


def test_a_pipeline_alone_has_the_whole_partition() -> None:
    machine = Machine(ONE, 1, single("m:1", name="hog:1"), single("m:1", name="modest:1"))
    machine.sends("modest:1", 4000, 20_000, 40_000)
    machine.sends("hog:1", 500, 20_000, 3_400_000, after_us=1_400_000)
    machine.run()
    # The other one has asked for nothing for a second.
    assert machine.in_time("modest:1") == 1
    assert machine.in_time("hog:1") > 0.48


def test_a_client_that_asks_for_too_much_keeps_out_no_modest_one() -> None:
    machine = Machine(ONE, 1, single("m:1"))
    machine.sends("m:1", 500, 20_000, 400_000, client="hog")
    machine.sends("m:1", 4000, 20_000, 400_000, client="modest")
    machine.run()
    assert machine.in_time("modest") > 0.9
    assert 0.33 < machine.in_time("hog") < 0.4


def test_clients_that_ask_for_less_than_there_is_are_not_limited() -> None:
    machine = Machine(ONE, 1, single("m:1"))
    machine.sends("m:1", 2000, 5_000, 400_000, client="one")
    machine.sends("m:1", 4000, 5_000, 400_000, client="other")
    machine.run()
    assert (machine.in_time("one"), machine.in_time("other")) == (1, 1)


def test_no_more_clients_are_counted_apart_than_there_is_room_for() -> None:
    machine = Machine(GAINING, 8, single("m:1"))
    for number in range(2000):
        machine.sends("m:1", MS, 20_000, number * 1000 + 1, client=f"client{number}", after_us=number * 1000)
    machine.run()
    assert all(machine.in_time(f"client{number}") == 1 for number in range(2000))
    assert len(machine.scheduler.pipelines["m:1"].clients) <= 1024
