"""Options at hand-made rates: hand-offs take no time, and a second of a partition costs 1, unless a test says so."""

from collections.abc import Mapping, Sequence

import pytest

from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.plan_data import Observed, Way
from sluice.batcher.planner.demand import DemandTable, demand_table
from sluice.batcher.planner.exact import plan_exact
from sluice.batcher.planner.problem.problem import Problem
from sluice.batcher.planner.stage_options import Candidate, pipeline_candidates, problem_of
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, cascade, chain, ensemble, model, spec_of

NO_HAND_OFF = Limits(hand_off_ns=0)
FLAT = LatencyTable.from_ms({1: 10, 2: 10, 4: 10})
"""10 ms whatever the batch: one partition does 400 rows a second at most."""

Tables = Mapping[str, dict[str, LatencyTable]]


def spec(
    models: Sequence[ScheduledModel],
    pipelines: Sequence[PipelineConfig] = (),
    partitions: Sequence[str | PartitionConfig] = ("cpu0",),
) -> SchedulerSpec:
    return spec_of(models, pipelines, partitions=partitions, limits=NO_HAND_OFF)


def demand(
    served: SchedulerSpec,
    tables: Tables,
    rate: float = 0.0,
    probabilities: tuple[float, ...] | None = None,
) -> DemandTable:
    """All pipelines have the same rate; `probabilities` are the first one's."""
    first = served.pipelines[0].name
    shares = {} if probabilities is None else {first: probabilities}
    return demand_table(served, Observed(dict(tables), {each.name: rate for each in served.pipelines}, shares))


def only_stage(asked: DemandTable) -> list[Candidate]:
    (choices,) = pipeline_candidates(asked, asked.spec.pipelines[0])
    return choices


def problem(asked: DemandTable, budget_ns: int, percentile: float = 1.0) -> Problem:
    first = asked.spec.pipelines[0]
    return problem_of(asked, first, pipeline_candidates(asked, first), budget_ns, percentile)


def figures(candidates: Sequence[Candidate]) -> list[tuple[str, int, float, float]]:
    """Kind, batch, latency in ms, cost."""
    return [(each.option.kind, each.option.batch, each.latency_ns / MS, each.cost) for each in candidates]


def test_of_partitions_of_a_kind_with_prices_of_their_own_the_mean_counts() -> None:
    partitions = [PartitionConfig("cheap", "cpu1", price=1.0), PartitionConfig("dear", "cpu1", price=4.0)]
    choices = only_stage(demand(spec([model("m:1", 1)], partitions=partitions), {"m:1": {"cpu1": FLAT}}))
    assert figures(choices) == [("cpu1", 1, 10.0, 2.5 * 0.01)]


def test_without_traffic_every_batch_is_of_one_row() -> None:
    served = spec([model("m", 4)])
    found = only_stage(demand(served, {"m": {"cpu1": LatencyTable.from_ms({1: 10, 4: 20})}}))
    assert figures(found) == [("cpu1", 1, 10, 0.01), ("cpu1", 4, 10, 0.01)]


def test_the_hand_off_takes_time_but_costs_nothing() -> None:
    served = spec_of([model("m", 1)], limits=Limits(hand_off_ns=MS))
    assert figures(only_stage(demand(served, {"m": {"cpu1": FLAT}}))) == [("cpu1", 1, 11, 0.01)]


def test_what_cannot_take_the_rate_is_no_option() -> None:
    # 150 rows a second: 1.5 of the partition in batches of 1, 0.75 in batches of 2.
    found = only_stage(demand(spec([model("m", 4)]), {"m": {"cpu1": FLAT}}, 150))
    assert [each.option.batch for each in found] == [2, 4]
    assert [each.predicted.utilisation for each in found if each.predicted] == pytest.approx([0.75, 0.375])


def test_a_rate_beyond_capacity_leaves_options_without_waits() -> None:
    found = only_stage(demand(spec([model("m", 4)]), {"m": {"cpu1": FLAT}}, 1000))
    assert figures(found) == [("cpu1", 1, 10, 0.01), ("cpu1", 2, 10, 0.005), ("cpu1", 4, 10, 0.0025)]
    assert all(each.predicted is None for each in found)


def test_a_hole_is_no_option_and_batches_within_it_take_the_next_larger_cell() -> None:
    table = LatencyTable.from_ms({1: 10, 8: 12})
    found = only_stage(demand(spec([model("m", 4)]), {"m": {"cpu1": table}}))
    assert [(each.option.batch, each.option.service_ns / MS) for each in found] == [(1, 10), (4, 12)]


def test_nothing_is_promised_beyond_the_last_cell() -> None:
    found = only_stage(demand(spec([model("m", 64)]), {"m": {"cpu1": FLAT}}))
    assert [each.option.batch for each in found] == [1, 2, 4]


def test_a_table_that_falls_is_planned_with_as_it_is() -> None:
    table = LatencyTable(((1, 10 * MS), (2, 9 * MS), (4, 12 * MS)))
    found = only_stage(demand(spec([model("m", 4)]), {"m": {"cpu1": table}}, 100))
    assert [each.option.service_ns / MS for each in found] == [9, 12], "one by one 100 a second are too many"
    assert all(each.predicted is not None for each in found)


def test_missing_tables_are_reported_with_the_stage() -> None:
    with pytest.raises(ConfigError, match="stage 'm': no latencies are known of model m on any partition"):
        only_stage(demand(spec([model("m")]), {}))
    with pytest.raises(ConfigError, match="on any partition"):
        only_stage(demand(spec([model("m")]), {"m": {"mig-1g": FLAT}}))


@pytest.mark.parametrize(("probability", "rates"), [(0.0, [50, 0]), (0.5, [50, 25]), (1.0, [50, 50])])
def test_a_stage_counts_as_often_as_it_runs(probability: float, rates: list[float]) -> None:
    served = spec([model("a"), model("b")], [cascade("a", "b")])
    asked = demand(served, {"a": {"cpu1": FLAT}, "b": {"cpu1": FLAT}}, 50, (1.0, probability))
    first, second = problem(asked, 100 * MS).stages
    assert [first.rate, second.rate] == rates
    assert (first.probability, second.probability) == (1.0, probability)
    assert second.on_path == (probability > 0)
    assert second.sources == (0,)


def test_a_stage_that_few_requests_reach_takes_no_time_at_the_percentile() -> None:
    served = spec([model("a"), model("b")], [cascade("a", "b")])
    asked = demand(served, {"a": {"cpu1": FLAT}, "b": {"cpu1": FLAT}}, 50, (1.0, 0.01))
    paths = [problem(asked, MS, at).stages[1].on_path for at in (1.0, 0.995, 0.99)]
    assert paths == [True, True, False]


# -- stages that are there at the same time


def lone_p99_ms(
    served: SchedulerSpec, tables: Tables, probabilities: tuple[float, ...] | None = None
) -> list[tuple[float, float]]:
    """Median and 99th percentile of each stage for lone requests, in the first of its options."""
    asked = demand(served, tables, 0.0, probabilities)
    firsts = [choices[0].predicted for choices in pipeline_candidates(asked, served.pipelines[0])]
    return [(each.p50_ns / MS, each.p99_ns / MS) for each in firsts if each is not None]


THREE = {key: {"cpu1": FLAT} for key in ("a", "b", "c")}


@pytest.mark.parametrize(("partitions", "p99_ms"), [(1, 30), (2, 20), (3, 10), (4, 10)])
def test_stages_side_by_side_wait_for_each_other_where_partitions_are_fewer(partitions: int, p99_ms: float) -> None:
    names = [f"cpu{number}" for number in range(partitions)]
    served = spec([model(key) for key in THREE], [ensemble(*THREE)], names)
    assert lone_p99_ms(served, THREE) == [(p99_ms, p99_ms)] * 3 + [(0, 0)]


def test_stages_one_after_another_do_not_wait_for_each_other() -> None:
    served = spec([model(key) for key in THREE], [chain(*THREE)])
    assert lone_p99_ms(served, THREE) == [(10, 10)] * 3


def test_a_stage_that_is_held_elsewhere_keeps_nobody_waiting() -> None:
    partitions = [PartitionConfig("p", "cpu1", models=("a",)), PartitionConfig("q", "cpu1", models=("b", "c"))]
    served = spec([model(key) for key in THREE], [ensemble(*THREE)], partitions)
    assert [p99_ms for _, p99_ms in lone_p99_ms(served, THREE)] == [10, 20, 20, 0]


def test_a_way_through_the_pipeline_waits_once_for_each_stage_beside_it() -> None:
    # Two chains of two: four batches of 10 ms on one partition.
    stages = [StageConfig(key, key, sources) for key, sources in (("a", ()), ("b", ()), ("c", (0,)), ("d", (1,)))]
    served = spec([model(key) for key in "abcd"], [PipelineConfig("p:1", tuple(stages))])
    asked = demand(served, {key: {"cpu1": FLAT} for key in "abcd"})
    assert plan_exact(problem(asked, 100 * MS))[0].latency_ns == 40 * MS


@pytest.mark.parametrize(("probability", "expected"), [(0.005, (10, 10)), (0.3, (10, 20)), (0.6, (20, 20))])
def test_a_stage_that_some_requests_skip_keeps_those_waiting_that_do_not(
    probability: float, expected: tuple[float, float]
) -> None:
    when = StageConfig("b", "b", when=WhenConfig(0, 0, 0.9))
    stages = (StageConfig("gate", "a"), when, StageConfig("c", "c", (0,)))
    served = spec([model(key) for key in THREE], [PipelineConfig("p:1", stages)])
    assert lone_p99_ms(served, THREE, (1.0, probability, 1.0))[2] == expected


@pytest.mark.parametrize(("max_batch", "p99_ms"), [(4, 16), (2, 22), (1, 30)])
def test_stages_of_the_same_model_run_in_one_batch_as_far_as_it_may_be_that_large(
    max_batch: int, p99_ms: float
) -> None:
    table = LatencyTable.from_ms({1: 10, 2: 11, 4: 16})
    served = spec([model("m", max_batch)], [ensemble("m", "m", "m")])
    last = pipeline_candidates(demand(served, {"m": {"cpu1": table}}), served.pipelines[0])[0][-1]
    assert last.latency_ns == p99_ms * MS


def test_what_joins_a_batch_never_makes_the_tail_shorter_than_the_median() -> None:
    # With those of the three stages beside it a lone row is in a batch of 4, two rows are in a quicker one of 5.
    table = LatencyTable(((1, 10 * MS), (2, 20 * MS), (4, 36 * MS), (8, 24 * MS)))
    served = spec([model("m", 8)], [ensemble("m", "m", "m", "m")], [f"cpu{number}" for number in range(8)])
    last = pipeline_candidates(demand(served, {"m": {"cpu1": table}}, 40), served.pipelines[0])[0][-1]
    assert last.predicted is not None
    assert (last.predicted.rows, last.predicted.rows99) == (1, 2)
    assert (last.predicted.p50_ns, last.predicted.p99_ns) == (36 * MS, 36 * MS)


# -- where models are


def test_only_the_partitions_that_hold_a_model_count() -> None:
    partitions = [PartitionConfig("p", "cpu1", models=("a",)), PartitionConfig("q", "cpu1", models=("a", "b"))]
    served = spec([model("a", 1), model("b", 1)], partitions=partitions)
    asked = demand(served, {"a": {"cpu1": FLAT}, "b": {"cpu1": FLAT}}, 50)
    assert (asked.capacities("a"), asked.capacities("b")) == ({"cpu1": 200}, {"cpu1": 100})
    # Of q, a takes a quarter of the time, and b half; of p nobody else takes any.
    assert asked.servers("a", "cpu1", ("a", 50.0)) == pytest.approx(1.5)
    assert asked.servers("b", "cpu1", ("b", 50.0)) == pytest.approx(0.75)
    (choice,) = only_stage(asked)
    assert choice.option.servers == 2


def test_a_residency_says_where_models_are() -> None:
    served = spec([model("a", 1), model("b", 1)], [chain("a", "b")], ["cpu0", "cpu1"])
    observed = Observed({"a": {"cpu1": FLAT}, "b": {"cpu1": FLAT}}, {"chain:1": 60.0}, {})
    asked = demand_table(served, observed, {"cpu0": ("a",), "cpu1": ("b",)})
    assert (asked.capacities("a"), asked.capacities("b")) == ({"cpu1": 100}, {"cpu1": 100})
    assert asked.servers("a", "cpu1", ("a", 60.0)) == 1
    assert asked.partitions == {"cpu1": 2}
    nowhere = demand_table(served, observed, {"cpu0": ("a",), "cpu1": ()})
    with pytest.raises(ConfigError, match="stage 'b#1': no partition that is up holds model b, or has room for it"):
        pipeline_candidates(nowhere, served.pipelines[0])


def test_a_combiner_takes_no_time() -> None:
    stages = (StageConfig("one", "m"), StageConfig("vote", None, (0,)))
    served = spec([model("m")], [PipelineConfig("p:1", stages)])
    assert figures(pipeline_candidates(demand(served, {"m": {"cpu1": FLAT}}), served.pipelines[0])[1]) == [
        ("", 1, 0, 0)
    ]


def test_what_runs_one_by_one_takes_that_time_from_the_others() -> None:
    # a takes 0.2 of the partition one by one, so that b can count on 0.8.
    served = spec([model("a", 4), model("b", 4)])
    asked = demand(served, {"a": {"cpu1": FLAT}, "b": {"cpu1": FLAT}}, 20)
    assert asked.servers("b", "cpu1", ("b", 20.0)) == pytest.approx(0.8)


def test_when_batches_have_to_grow_time_is_shared_by_what_each_needs() -> None:
    # One by one each would take all of the partition, and a in its best batches a third of what b does.
    served = spec([model("a", 4), model("b", 4)])
    asked = demand(served, {"a": {"cpu1": LatencyTable.from_ms({1: 10, 4: 10})}, "b": {"cpu1": FLAT_3}}, 100)
    assert asked.servers("a", "cpu1", ("a", 100.0)) == pytest.approx(0.25)
    assert asked.servers("b", "cpu1", ("b", 100.0)) == pytest.approx(0.75)


FLAT_3 = LatencyTable.from_ms({1: 30, 4: 30})


def unequal(*rates: float) -> DemandTable:
    """Models m0, m1, … at these rates on one partition, each served by itself."""
    keys = [f"m{number}" for number in range(len(rates))]
    served = spec([model(key, 4) for key in keys])
    return demand_table(
        served, Observed({key: {"cpu1": FLAT} for key in keys}, dict(zip(keys, rates, strict=True)), {})
    )


@pytest.mark.parametrize("rate", [1.0, 1e-3, 1e-9, 5e-324, 0.0])
def test_beside_a_model_that_has_to_batch_a_tenth_of_the_time_is_there_for_one_with_little_traffic(rate: float) -> None:
    asked = unequal(280, rate)
    assert asked.servers("m1", "cpu1", ("m1", rate)) == pytest.approx(0.1)
    assert asked.servers("m0", "cpu1", ("m0", 280.0)) == pytest.approx(280 / (280 + rate))


def test_models_with_little_traffic_share_the_time_that_no_plan_counts_on() -> None:
    # One by one, m1 and m2 would take 0.2 and 0.03 of the time, in proportion 0.02 / 0.723 and 0.003 / 0.723.
    asked = unequal(280, 8, 1.2, 0)
    in_proportion = [rate / 289.2 for rate in (8, 1.2, 0)]
    left = 0.1 - (0.012 - in_proportion[1])
    assert asked.loads[0].extra == pytest.approx(left)
    assert [
        asked.servers(f"m{number}", "cpu1", (f"m{number}", rate)) for number, rate in ((1, 8), (2, 1.2), (3, 0))
    ] == [
        pytest.approx(0.1),
        pytest.approx(in_proportion[1] + left),
        pytest.approx(left),
    ]


def test_on_partitions_that_are_overloaded_little_traffic_is_too_much_and_none_as_well() -> None:
    for rate in (1.0, 1e-9, 5e-324, 0.0):
        asked = unequal(420, rate)
        assert all(each.predicted is None for each in pipeline_candidates(asked, asked.spec.pipelines[1])[0])


def test_together_many_models_with_little_traffic_never_plan_for_more_than_there_is() -> None:
    asked = unequal(200, *[8.0] * 10)
    smallest = [pipeline_candidates(asked, each)[0][0] for each in asked.spec.pipelines]
    rates = [asked.rates[each.option.model] for each in smallest]
    assert all(each.predicted is not None for each in smallest)
    taken = [
        rate * each.option.service_ns / each.option.batch / 1e9 for rate, each in zip(rates, smallest, strict=True)
    ]
    assert sum(taken) <= 1


@pytest.mark.parametrize("rate", [1, 20, 60, 100, 120])
def test_what_is_chosen_together_never_takes_more_than_all_partitions(rate: float) -> None:
    served = spec([model("a", 4), model("b", 4)], [chain("a", "b")], ("cpu0", "cpu1"))
    tables = {"a": {"cpu1": FLAT}, "b": {"cpu1": FLAT_3}}
    smallest = [choices[0] for choices in pipeline_candidates(demand(served, tables, rate), served.pipelines[0])]
    taken = sum(rate * each.option.service_ns / each.option.batch / 1e9 for each in smallest)
    assert taken <= 2


def test_a_model_is_spread_over_kinds_by_what_they_can_do() -> None:
    partitions = (PartitionConfig("quick", "cpu1"), PartitionConfig("slow", "cpu1/x3", price=0.5))
    served = spec([model("m", 1)], partitions=partitions)
    asked = demand(served, {"m": {"cpu1": FLAT, "cpu1/x3": FLAT_3}}, 40)
    assert [asked.rate_on("m", kind, ("m", 40.0)) for kind in ("cpu1", "cpu1/x3")] == pytest.approx([30, 10])
    assert [(each.option.kind, each.cost) for each in only_stage(asked)] == [("cpu1", 0.01), ("cpu1/x3", 0.015)]


def test_a_variant_that_takes_a_stage_over_finds_the_time_of_the_one_before_it() -> None:
    # 300 rows a second are too many for the first, which would leave nothing to the second if it went on.
    stages = (StageConfig("s", "large", variants=("large", "small")),)
    served = spec([model("large", 4), model("small", 4)], [PipelineConfig("p:1", stages)])
    asked = demand(served, {"large": {"cpu1": FLAT_3}, "small": {"cpu1": FLAT}}, 300)
    assert [(each.option.model, each.option.batch) for each in only_stage(asked)] == [("small", 4)]
    assert asked.servers("small", "cpu1", ("large", 300.0)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("policy", "p99_ms"),
    [
        (NoBatchingSettings(), {1: 10}),
        (TimeoutConfig(max_delay_ns=3 * MS), {1: 10, 2: 13, 4: 13}),
        (DeadlineSettings(Objective.LATENCY), {1: 10, 2: 10, 4: 10}),
    ],
)
def test_policies_wait_as_they_do(policy: PolicyConfig, p99_ms: dict[int, float]) -> None:
    found = only_stage(demand(spec([model("m", 4, policy)]), {"m": {"cpu1": FLAT}}, 0.5))
    assert {each.option.batch: each.latency_ns / MS for each in found} == p99_ms


def test_deferral_waits_for_full_batches_but_not_for_traffic_that_is_not_there() -> None:
    served = spec([model("m", 2, DeadlineSettings(Objective.COST))])
    lone, pair = only_stage(demand(served, {"m": {"cpu1": FLAT}}, 10))
    assert lone.latency_ns < 100 * MS < pair.latency_ns
    assert pair.cost == lone.cost / 2
    assert figures(only_stage(demand(served, {"m": {"cpu1": FLAT}}, 0)))[1][2] == 10


def test_4096_options_a_stage() -> None:
    table = LatencyTable(tuple((size, size * 1000) for size in range(1, 4097)))
    asked = demand(spec([model("m", 4096)]), {"m": {"cpu1": table}}, 100)
    (stage,) = problem(asked, MS).stages
    assert stage.cost.shape == (4096,)


MEGABYTE = 1_000_000
HERE_AND_AWAY = (PartitionConfig("here", "cpu1"), PartitionConfig("away", "cpu1"))


def over(way: Way, rate: float = 0.0, partitions: Sequence[PartitionConfig] = HERE_AND_AWAY) -> DemandTable:
    """A model with a megabyte a row each way, which takes 10 ms, also on the partition `away`."""
    heavy = ScheduledModel("m", 4, DeadlineSettings(), input_bytes=MEGABYTE, output_bytes=MEGABYTE)
    served = spec([heavy], partitions=partitions)
    return demand_table(served, Observed({"m": {"cpu1": FLAT}}, {"m": rate}, {}, ways={"away": way}))


def test_partitions_behind_a_link_are_a_kind_of_their_own_with_the_time_of_their_way() -> None:
    """A row is 1 ms on its way there and 1 ms back, and 0.5 ms pass in any case; it costs no more than a local one."""
    choices = only_stage(over(Way("10g", MS // 2, 1.0)))
    assert figures([each for each in choices if each.option.batch == 1]) == [
        ("cpu1", 1, 10, 0.01),
        ("cpu1 over 10g", 1, 12.5, 0.01),
    ]


def test_a_link_that_is_slower_than_the_partition_bounds_what_is_planned_for_it() -> None:
    """4 rows are 40 ms on their way there, so at most 100 rows a second come instead of 400."""
    away = HERE_AND_AWAY[1:]
    assert over(Way("1g", 0, 1.0), partitions=away).capacities("m") == {"cpu1 over 1g": pytest.approx(400)}
    assert over(Way("1g", 0, 10.0), partitions=away).capacities("m") == {"cpu1 over 1g": pytest.approx(4 / 0.045)}
    assert only_stage(over(Way("1g", 0, 1.0), 200, away))[-1].predicted is not None
    assert only_stage(over(Way("1g", 0, 10.0), 200, away))[-1].predicted is None
