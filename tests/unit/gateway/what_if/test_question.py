"""Answers on hand-made latencies. A partition-second costs 1, so that 1000 rows of 10 ms cost 10; no hand-off."""

from collections.abc import Mapping

import msgspec
import pytest

from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, StageConfig
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.registry import path_planners
from sluice.gateway.cli.text.plan_report import report
from sluice.gateway.what_if.answer import LimitingFactor, PlanAnswer, TableSource, TableUsed
from sluice.gateway.what_if.planning import WhatIf
from sluice.gateway.what_if.question import PlanQuestion, answer_question
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, cascade, chain, ensemble, model, single, spec_of

FLAT = LatencyTable.from_ms({1: 10, 2: 10, 4: 10})
SLOW = LatencyTable.from_ms({1: 30, 2: 30, 4: 30})
QUICK = PartitionConfig("quick", "cpu1")
CHEAP = PartitionConfig("cheap", "cpu1/x3", price=0.1)
BOTH = {"cpu1": FLAT, "cpu1/x3": SLOW}

Tables = Mapping[str, Mapping[str, LatencyTable]]


def what_if(
    pipeline: PipelineConfig,
    tables: Tables,
    probabilities: tuple[float, ...] | None = None,
    percentile: float = 1.0,
    partitions: tuple[PartitionConfig, ...] = (QUICK,),
) -> WhatIf:
    spec = spec_of([model(key, 4) for key in tables], [pipeline], partitions=partitions, limits=Limits(hand_off_ns=0))
    shares = {} if probabilities is None else {pipeline.name: probabilities}
    return WhatIf(spec, {key: dict(kinds) for key, kinds in tables.items()}, shares, percentile)


def asked(case: WhatIf, slo_ms: float, rate: float = 0.0, planner: str = "exact") -> PlanAnswer:
    return answer_question(case, PlanQuestion(round(slo_ms * MS), rate, planner))


def test_the_plan_and_its_figures() -> None:
    found = asked(what_if(chain("a", "b"), {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}), 50)
    assert (found.feasible, found.plan.p50_ms, found.plan.p99_ms) == (True, 40, 40)
    assert found.plan.cost_per_1000 == pytest.approx(40)
    assert [(each.model, each.kind, each.batch, each.p99_ms) for each in found.plan.stages] == [
        ("a", "cpu1", 1, 10),
        ("b", "cpu1", 1, 30),
    ]
    (point,) = found.front
    assert point.p99_ms == 40
    assert point.cost_per_1000 == pytest.approx(40)
    assert found.lowest_slo_ms == 40
    assert found.runner_up is None, "batches of other sizes never fill"


def test_the_arithmetic_of_a_stage() -> None:
    # At 60 rows a second the server is taken for 0.6 of the time.
    (stage,) = asked(what_if(single("m"), {"m": {"cpu1": FLAT}}), 100, 60).plan.stages
    part = stage.arithmetic
    assert part is not None
    assert stage.p99_ms == 10 + max(part.fill99_ms, part.queue99_ms, part.running99_ms)
    assert (part.kind_rate, part.servers, part.full_ms, part.compute_ms) == (60, 1, 10, 10)
    assert (part.price_per_s, part.begin_ms, part.rest_cost) == (1, 0, 0)
    assert part.left_ms == pytest.approx(100 - (stage.p99_ms or 0))
    assert stage.utilisation == pytest.approx(60 * 0.010 / stage.batch)


def test_the_front_the_runner_up_and_what_is_cheaper_with_more_time() -> None:
    case = what_if(chain("a", "b"), {"a": BOTH, "b": BOTH}, partitions=(QUICK, CHEAP))
    found = asked(case, 45)
    assert [each.p99_ms for each in found.front] == [20, 40, 60]
    assert [each.cost_per_1000 for each in found.front] == pytest.approx([20, 13, 6])
    assert found.plan.p99_ms == 40
    assert found.plan.cost_per_1000 == pytest.approx(13)
    assert found.runner_up is not None
    assert (found.runner_up.p99_ms, found.runner_up.reason) == (20, "more expensive by 53.8%")
    assert len(found.runner_up.stages) == 1
    assert "cheaper from an objective of 60.000 ms on: 6" in report(found)


def test_when_nothing_else_fits_the_runner_up_is_too_slow() -> None:
    found = asked(what_if(single("m"), {"m": BOTH}, partitions=(QUICK, CHEAP)), 20)
    assert found.runner_up is not None
    assert found.runner_up.stages == ("m=m*1@cpu1/x3",)
    assert found.runner_up.reason == "too slow by 10.000 ms"


def test_a_cascade_costs_by_how_often_and_takes_the_whole_way() -> None:
    tables = {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}
    found = asked(what_if(cascade("a", "b"), tables, (1.0, 0.2)), 50)
    assert (found.plan.p50_ms, found.plan.p99_ms) == (10, 40), "the median request does not go on"
    assert found.plan.cost_per_1000 == pytest.approx(16)


@pytest.mark.parametrize(("probability", "p99_ms", "cost"), [(0, 10, 10), (0.005, 10, 10.15), (1, 40, 40)])
def test_stages_that_hardly_any_or_all_requests_reach(probability: float, p99_ms: float, cost: float) -> None:
    tables = {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}
    found = asked(what_if(cascade("a", "b"), tables, (1.0, probability), 0.99), 50, 1e-9)
    assert found.feasible
    assert found.plan.p99_ms == p99_ms
    assert found.plan.cost_per_1000 == pytest.approx(cost)


@pytest.mark.parametrize("probability", [1e-6, 1e-9, 1e-12, 1e-15, 5e-324, 0.0])
def test_a_share_that_vanishes_leaves_the_answer_of_a_share_of_zero(probability: float) -> None:
    tables = {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}
    found = asked(what_if(cascade("a", "b"), tables, (1.0, probability), 0.99), 100, 290)
    never = asked(what_if(cascade("a", "b"), tables, (1.0, 0.0), 0.99), 100, 290)
    assert found.feasible
    assert found.plan.p99_ms == pytest.approx(never.plan.p99_ms, rel=1e-3)
    assert found.plan.cost_per_1000 == pytest.approx(never.plan.cost_per_1000, rel=1e-3)
    assert found.highest_rate == pytest.approx(never.highest_rate, rel=1e-2)
    at_all = asked(what_if(cascade("a", "b"), tables, (1.0, probability), 1.0), 200, 290)
    assert at_all.feasible
    assert (at_all.plan.p99_ms or 0) <= 200


def test_only_what_the_latency_hangs_on_is_critical() -> None:
    both = (QUICK, PartitionConfig("second", "cpu1"))
    found = asked(what_if(ensemble("a", "b"), {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}, partitions=both), 50)
    assert found.plan.p99_ms == 30
    assert [each.stage for each in found.plan.stages if each.critical] == ["b#1"]
    assert found.plan.stages[2].arithmetic is None
    assert "vote: a combiner, which runs on no partition" in report(found, explain=True)


@pytest.mark.parametrize(("partitions", "feasible", "p99_ms"), [(1, False, 30.45), (2, False, 20.3), (3, True, 10.15)])
def test_models_side_by_side_on_too_few_partitions(partitions: int, feasible: bool, p99_ms: float) -> None:
    """Three of 10 ms, and an objective of 20 ms; the hand-off takes 0.15 ms."""
    keys = ("a", "b", "c")
    cores = [PartitionConfig(f"cpu{number}", "cpu1") for number in range(partitions)]
    spec = spec_of([model(key) for key in keys], [ensemble(*keys)], partitions=cores)
    found = asked(WhatIf(spec, {key: {"cpu1": LatencyTable.from_ms({1: 10})} for key in keys}, {}), 20)
    assert (found.feasible, found.plan.p50_ms, found.plan.p99_ms) == (feasible, p99_ms, p99_ms)
    assert (found.infeasible.nearest_slo_ms if found.infeasible else None) == (None if feasible else p99_ms)
    text = report(found, explain=True)
    assert ("+ parallel stages 20.300 = 30.450 ms" in text) == (partitions == 1)


def test_a_stage_s_capacity_limits_the_rate() -> None:
    # A partition does 400 rows of a or 133.3 of b a second, so 100 of both; nine tenths of that is planned for.
    found = asked(what_if(chain("a", "b"), {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}), 10_000, 10)
    assert found.highest_rate == pytest.approx(90, rel=0.002)
    assert found.limited_by is LimitingFactor.CAPACITY
    assert found.bottleneck.stage == "b#1"
    assert found.bottleneck.capacity == pytest.approx(400 / 3)
    assert found.bottleneck.utilisation == pytest.approx(0.075)
    assert found.bottleneck.total_utilisation == pytest.approx(0.1)


def test_models_that_are_on_different_partitions_do_not_share_these() -> None:
    # Each has a partition to itself, and can do 100 rows a second there.
    models = [msgspec.structs.replace(model(key, 1), memory_bytes=1) for key in "ab"]
    partitions = [PartitionConfig(name, "cpu1", memory_bytes=1) for name in ("p", "q")]
    spec = spec_of(models, [chain("a", "b")], partitions=partitions, limits=Limits(hand_off_ns=0))
    case = WhatIf(spec, {key: {"cpu1": FLAT} for key in "ab"}, {})
    found = asked(case, 1000, 60)
    assert found.feasible
    assert found.residency == {"p": ("a",), "q": ("b",)}
    assert (found.bottleneck.capacity, found.bottleneck.utilisation) == pytest.approx((100, 0.6))
    assert found.bottleneck.total_utilisation == pytest.approx(0.6)
    assert found.highest_rate == pytest.approx(90, rel=0.01)
    text = report(found)
    assert "loaded on p: a\nloaded on q: b\n" in text
    assert not asked(case, 1000, 95).feasible


def test_the_objective_limits_the_rate() -> None:
    case = what_if(single("m"), {"m": {"cpu1": FLAT}})
    found = asked(case, 12, 0.5)
    assert found.limited_by is LimitingFactor.LATENCY
    assert found.highest_rate is not None
    assert asked(case, 12, found.highest_rate).feasible
    assert not asked(case, 12, found.highest_rate * 1.01).feasible


def test_an_objective_below_any_possible_latency() -> None:
    found = asked(what_if(chain("a", "b"), {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}), 35)
    trouble = found.infeasible
    assert trouble is not None
    assert not found.feasible
    assert (trouble.stage, trouble.excess_ms, trouble.nearest_slo_ms, trouble.nearest_rate) == ("b#1", 5, 40, None)
    assert found.plan.p99_ms == 40, "the quickest there is"
    text = report(found)
    assert "INFEASIBLE: the fastest configuration takes 40.000 ms, 5.000 ms too long; stage 'b#1' takes most" in text
    assert "possible instead: an objective of 40.000 ms at this rate" in text
    assert "not even a lone request" in text


def test_too_slow_at_this_rate_but_not_at_a_lower_one() -> None:
    trouble = asked(what_if(single("m"), {"m": {"cpu1": FLAT}}), 12, 100).infeasible
    assert trouble is not None
    assert trouble.nearest_slo_ms is not None
    assert trouble.nearest_slo_ms > 12
    assert trouble.nearest_rate is not None
    assert 0 < trouble.nearest_rate < 100


def test_a_rate_beyond_capacity() -> None:
    found = asked(what_if(chain("a", "b"), {"a": {"cpu1": FLAT}, "b": {"cpu1": SLOW}}), 1000, 200)
    trouble = found.infeasible
    assert trouble is not None
    assert trouble.stage == "b#1"
    assert "all stages together take 200% of the partitions' time with their best batches" in trouble.reason
    assert (trouble.excess_ms, trouble.nearest_slo_ms) == (None, None)
    assert trouble.nearest_rate is not None
    assert trouble.nearest_rate + (trouble.excess_rate or 0) == pytest.approx(200)
    assert (found.plan.p99_ms, found.front, found.lowest_slo_ms) == (None, (), None)
    assert "too much" in report(found, explain=True)


@pytest.mark.parametrize("planner", path_planners())
def test_every_planner_answers(planner: str) -> None:
    case = what_if(chain("a", "b"), {"a": BOTH, "b": BOTH}, partitions=(QUICK, CHEAP))
    found = asked(case, 70, 10, planner)
    assert found.feasible
    assert found.planner == planner
    assert found.exact_cost_per_1000 is not None
    assert found.plan.cost_per_1000 >= found.exact_cost_per_1000
    assert msgspec.json.decode(msgspec.json.encode(found), type=PlanAnswer) == found


def test_a_planner_that_misses_what_there_is() -> None:
    # INFless gives a batch half of the objective, and there are no batches of one.
    found = asked(what_if(single("m"), {"m": {"cpu1": LatencyTable.from_ms({2: 10, 4: 11})}}), 12, 0.1, "infless")
    assert not found.feasible
    assert found.infeasible is not None
    assert found.infeasible.reason.startswith("planner infless finds no configuration that fits although one exists")


def test_aquatope_with_one_seed_gives_one_answer() -> None:
    case = what_if(chain("a", "b"), {"a": BOTH, "b": BOTH}, partitions=(QUICK, CHEAP))
    first, second = (answer_question(case, PlanQuestion(70 * MS, 10, "aquatope", {"seed": 7})) for _ in range(2))
    assert first == second


def test_variants_of_a_stage_compete() -> None:
    pipeline = PipelineConfig("p:1", (StageConfig("s", "large", variants=("large", "small")),))
    case = what_if(pipeline, {"large": {"cpu1": SLOW}, "small": {"cpu1": FLAT}})
    assert asked(case, 50, 300).plan.stages[0].model == "small"


def test_simulated_figures_are_labelled_on_every_line_of_figures() -> None:
    case = what_if(chain("a", "b"), {"a": BOTH, "b": BOTH}, partitions=(QUICK, CHEAP))
    tables = tuple(TableUsed(key, "cpu1", TableSource.SIMULATED) for key in "ab")
    found = answer_question(case, PlanQuestion(45 * MS, 0, tables=tables))
    assert found.simulated
    text = report(found, explain=True)
    for line in text.splitlines():
        if line.startswith(("runner-up", "bottleneck", "highest", "lowest", "cheaper")) or "Pareto" in line:
            assert "SIMULATED" in line
    assert "1 x cpu1 SIMULATED" in text
    assert "a on cpu1 SIMULATED" in text or "b on cpu1 SIMULATED" in text


def test_40_stages_of_which_each_has_options() -> None:
    keys = [f"m{index}" for index in range(40)]
    found = asked(what_if(chain(*keys), dict.fromkeys(keys, BOTH), partitions=(QUICK, CHEAP)), 800)
    assert found.feasible
    assert (found.plan.p99_ms, len(found.plan.stages)) == (800, 40)


def test_a_pipeline_beside_others_has_what_they_leave() -> None:
    pipelines = [msgspec.structs.replace(single(key), slo_ns=100 * MS) for key in "ab"]
    spec = spec_of([model(key, 4) for key in "ab"], pipelines, partitions=(QUICK,), limits=Limits(hand_off_ns=0))
    tables = {key: {"cpu1": FLAT} for key in "ab"}

    def highest(beside: float) -> float:
        case = WhatIf.beside_others(spec, Observed(tables, {"a": 5.0, "b": beside}, {}), pipelines[0])
        return case.highest_rate(100 * MS)

    alone = WhatIf(msgspec.structs.replace(spec, pipelines=(pipelines[0],)), tables, {}).highest_rate(100 * MS)
    assert highest(0.0) == pytest.approx(alone, rel=0.01)
    assert highest(50.0) < 0.95 * alone


def test_the_figures_of_a_configuration_that_was_chosen_before() -> None:
    now = what_if(chain("a", "b"), {"a": BOTH, "b": BOTH}, partitions=(QUICK, CHEAP)).at(1.0)
    found = now.configured([("a", 1, "cpu1"), ("b", 1, "cpu1/x3")])
    assert found is not None
    assert [each.option.kind for each in found.candidates] == ["cpu1", "cpu1/x3"]
    assert found.latency_ns == 40 * MS
    assert now.configured([("a", 1, "cpu1"), ("b", 3, "cpu1")]) is None
