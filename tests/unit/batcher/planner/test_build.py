from collections.abc import Callable

import msgspec
import pytest

from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, SchedulerSpec, StageConfig
from sluice.batcher.interface.plan_data import CostToGo, Observed, PipelinePlan
from sluice.batcher.planner.build import build_plan
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, cascade, chain, model, single, spec_of

HALVING = LatencyTable.from_ms({1: 10, 2: 10, 4: 10})
SLOWER = LatencyTable.from_ms({1: 30, 2: 30, 4: 30})


def plan_of(
    pipeline: PipelineConfig,
    tables: dict[str, dict[str, LatencyTable]],
    *,
    slo_ms: int = 100,
    rate: float = 0.0,
    probabilities: tuple[float, ...] | None = None,
    partitions: tuple[PartitionConfig, ...] = (PartitionConfig("cpu0", "cpu1"),),
) -> PipelinePlan | None:
    keys = {key: None for stage in pipeline.stages for key in (stage.variants or (stage.model,)) if key is not None}
    planned = msgspec.structs.replace(pipeline, slo_ns=slo_ms * MS)
    spec = spec_of([model(key, 4) for key in keys], [planned], partitions=partitions, limits=Limits(hand_off_ns=0))
    shares = {} if probabilities is None else {pipeline.name: probabilities}
    plans = build_plan(spec, Observed(tables, {pipeline.name: rate}, shares)).pipelines
    return plans[0] if plans else None


def test_every_stage_has_its_choice_and_what_follows_it() -> None:
    found = plan_of(chain("a", "b"), {"a": {"cpu1": HALVING}, "b": {"cpu1": SLOWER}})
    assert found is not None
    assert [(each.model, each.batch, each.kind, each.latency_ns) for each in found.stages] == [
        ("a", 1, "cpu1", 10 * MS),
        ("b", 1, "cpu1", 30 * MS),
    ]
    assert (found.latency_ns, found.feasible) == (40 * MS, True)
    assert found.cost == pytest.approx(0.04)
    assert found.stages[0].rest == CostToGo((30 * MS,), (0.03,))
    assert found.stages[1].rest == CostToGo((0,), (0.0,))


def test_the_cheap_partition_is_taken_where_the_objective_leaves_time_for_it() -> None:
    partitions = (PartitionConfig("quick", "cpu1"), PartitionConfig("slow", "cpu1/x3", price=0.1))
    tables = {"m": {"cpu1": HALVING, "cpu1/x3": SLOWER}}
    found = [plan_of(single("m"), tables, slo_ms=slo_ms, partitions=partitions) for slo_ms in (29, 30)]
    assert [each.stages[0].kind for each in found if each] == ["cpu1", "cpu1/x3"]


def test_below_any_possible_latency_the_plan_is_the_quickest_and_says_so() -> None:
    found = plan_of(single("m"), {"m": {"cpu1": HALVING}}, slo_ms=9)
    assert found is not None
    assert (found.latency_ns, found.feasible) == (10 * MS, False)


def test_beyond_capacity_the_plan_is_the_best_for_what_is_admitted() -> None:
    found = plan_of(single("m"), {"m": {"cpu1": HALVING}}, rate=10_000)
    assert found is not None
    assert (found.stages[0].batch, found.latency_ns) == (4, 10 * MS)


@pytest.mark.parametrize(("probability", "latency_ms", "cost"), [(0, 10, 0.01), (0.5, 40, 0.025), (1, 40, 0.04)])
def test_what_never_runs_takes_no_time_and_what_may_run_takes_all_of_it(
    probability: float, latency_ms: int, cost: float
) -> None:
    tables = {"a": {"cpu1": HALVING}, "b": {"cpu1": SLOWER}}
    found = plan_of(cascade("a", "b"), tables, probabilities=(1.0, probability))
    assert found is not None
    assert found.latency_ns == latency_ms * MS
    assert found.cost == pytest.approx(cost)


BATCHING = LatencyTable.from_ms({1: 1, 2: 1.1, 4: 1.2, 8: 1.4})
VANISHING = [1e-4, 1e-6, 1e-9, 1e-12, 1e-15, 1e-30, 1e-300, 5e-324]


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("shape", [chain, cascade])
@pytest.mark.parametrize("share", VANISHING)
def test_a_share_that_vanishes_is_planned_for_as_a_share_of_zero(
    share: float, shape: Callable[..., PipelineConfig], objective: Objective
) -> None:
    pipeline = msgspec.structs.replace(shape("a", "b"), slo_ns=100 * MS)
    models = [model(key, 8, DeadlineSettings(objective)) for key in ("a", "b")]
    spec = spec_of(models, [pipeline], limits=Limits(hand_off_ns=0))
    tables = {key: {"cpu1": BATCHING} for key in ("a", "b")}
    found, never = (
        build_plan(spec, Observed(tables, {pipeline.name: 4000.0}, {pipeline.name: (1.0, each)}))
        for each in (share, 0.0)
    )
    assert (found.failed, never.failed) == ({}, {})
    (plan,), (limit,) = found.pipelines, never.pipelines
    assert plan.feasible
    assert plan.latency_ns == pytest.approx(limit.latency_ns, rel=1e-4)
    assert plan.cost == pytest.approx(limit.cost, rel=max(10 * share, 1e-12))
    assert plan.stages[1].latency_ns <= 100 * MS


@pytest.mark.parametrize("rate", VANISHING)
def test_a_rate_that_vanishes_is_planned_for_as_no_traffic(rate: float) -> None:
    tables = {"a": {"cpu1": HALVING}, "b": {"cpu1": SLOWER}}
    found, lone = (plan_of(chain("a", "b"), tables, rate=each) for each in (rate, 0.0))
    assert found is not None
    assert lone is not None
    assert (found.latency_ns, found.feasible) == (lone.latency_ns, True)
    assert found.cost == pytest.approx(lone.cost)


@pytest.mark.parametrize(("probability", "feasible"), [(0, True), (1e-9, True), (0.0009, True), (0.0011, False)])
def test_a_slow_stage_that_practically_never_runs_leaves_a_plan_feasible(probability: float, feasible: bool) -> None:
    tables = {"a": {"cpu1": HALVING}, "b": {"cpu1": LatencyTable.from_ms({1: 200})}}
    found = plan_of(cascade("a", "b"), tables, probabilities=(1.0, probability))
    assert found is not None
    assert found.feasible == feasible


def test_a_plan_leaves_time_for_a_stage_that_seldom_runs_where_there_is_time() -> None:
    partitions = (PartitionConfig("quick", "cpu1"), PartitionConfig("slow", "cpu1/x3", price=0.1))
    tables = {key: {"cpu1": HALVING, "cpu1/x3": SLOWER} for key in ("a", "b")}
    found = [
        plan_of(cascade("a", "b"), tables, slo_ms=slo_ms, probabilities=(1.0, probability), partitions=partitions)
        for slo_ms in (35, 40)
        for probability in (0.0, 1e-9, 1.0)
    ]
    assert [each.stages[0].kind for each in found if each] == ["cpu1/x3", "cpu1", "cpu1"] + ["cpu1/x3"] * 2 + ["cpu1"]
    assert [each.latency_ns // MS for each in found if each] == [30, 10, 20, 30, 30, 40]


def test_what_follows_a_stage_that_seldom_runs_costs_a_row_there_as_much_as_any_other() -> None:
    tables = {"a": {"cpu1": HALVING}, "b": {"cpu1": HALVING}, "c": {"cpu1": SLOWER}}
    for probability in (1.0, 1e-3, 1e-6):
        found = plan_of(cascade("a", "b", "c"), tables, probabilities=(1.0, probability, 1.0))
        assert found is not None
        assert found.stages[1].rest.cost == pytest.approx((0.03,))


def test_a_batch_that_waits_for_ever_leaves_a_plan_that_misses_the_objective() -> None:
    policy = TimeoutConfig(max_delay_ns=1 << 62)
    spec = spec_of([model("m", 4, policy)], [msgspec.structs.replace(single("m"), slo_ns=100 * MS)])
    found = build_plan(spec, Observed({"m": {"cpu1": LatencyTable.from_ms({4: 10})}}, {"m": 1e-9}, {}))
    assert [plan.feasible for plan in found.pipelines] == [False]


def test_where_waits_miss_the_objective_a_dispatch_still_goes_by_the_time_that_the_rest_runs() -> None:
    tables = {"a": {"cpu1": HALVING}, "b": {"cpu1": SLOWER}}
    found = plan_of(chain("a", "b"), tables, slo_ms=41, rate=20.0)
    assert found is not None
    assert not found.feasible
    assert found.latency_ns > 60 * MS, "a row waits for those before it"
    # The second stage alone, without waits: in full batches of 4 a row costs a quarter of 30 ms.
    assert found.stages[0].rest == CostToGo((30 * MS,), (0.0075,))


def test_a_plan_never_drops_a_pinned_model_for_one_that_is_asked_for_more() -> None:
    partitions = [PartitionConfig("a", "cpu1", memory_bytes=90), PartitionConfig("b", "cpu1", memory_bytes=60)]
    sizes = {"logreg": 27, "rf": 77, "mlp": 50}
    models = [
        msgspec.structs.replace(model(key, 4), memory_bytes=size, pinned=key == "logreg") for key, size in sizes.items()
    ]
    tables = {key: {"cpu1": HALVING} for key in sizes}
    held: dict[str, tuple[str, ...]] = {"a": ("logreg",), "b": ("mlp",)}
    found = build_plan(spec_of(models, partitions=partitions), Observed(tables, {"rf": 9.0, "mlp": 4.0}, {}, held))
    assert found.residency == {"a": ("rf",), "b": ("logreg",)}


def residency_of(observed: Observed, names: str = "ab") -> dict[str, tuple[str, ...]]:
    """Where two models go of which each partition has room for one."""
    models = [msgspec.structs.replace(model(key, 4), memory_bytes=1) for key in ("m", "n")]
    partitions = [PartitionConfig(name, "cpu1", memory_bytes=1) for name in names]
    return build_plan(spec_of(models, partitions=partitions), observed).residency


def test_a_partition_that_is_gone_is_given_no_models() -> None:
    tables = {key: {"cpu1": HALVING} for key in ("m", "n")}
    held: dict[str, tuple[str, ...]] = {"a": ("m",), "b": ("n",)}
    assert residency_of(Observed(tables, {}, {}, held)) == {"a": ("m",), "b": ("n",)}
    assert residency_of(Observed(tables, {"n": 1.0}, {}, held, ("a",), ("b",))) == {"a": ("n",)}
    assert residency_of(Observed(tables, {}, {}, held, (), ("a", "b"))) == {}


def test_without_room_for_all_a_model_that_was_never_loaded_gets_it_when_it_alone_is_asked_for() -> None:
    tables = {"n": {"cpu1": HALVING}}
    held: dict[str, tuple[str, ...]] = {"a": ("n",)}
    assert residency_of(Observed(tables, {}, {}, held), "a") == {"a": ("n",)}
    assert residency_of(Observed(tables, {"m": 0.01}, {}, held), "a") == {"a": ("m",)}
    assert residency_of(Observed(tables, {"m": 1.0, "n": 1.0}, {}, held), "a") == {"a": ("n",)}
    assert residency_of(Observed(tables, {"m": 1.3, "n": 1.0}, {}, held), "a") == {"a": ("m",)}


@pytest.mark.parametrize(("rate", "feasible"), [(80.0, True), (120.0, False)])
def test_a_plan_counts_on_the_partitions_that_it_gives_a_model(rate: float, feasible: bool) -> None:
    """There is room for one model each: a can do 100 rows a second, where both partitions could do 180 of the two."""
    models = [msgspec.structs.replace(model(key, 1), memory_bytes=1) for key in ("a", "b")]
    partitions = [PartitionConfig(name, "cpu1", memory_bytes=1) for name in ("p0", "p1")]
    tables = {"a": {"cpu1": LatencyTable.from_ms({1: 10})}, "b": {"cpu1": LatencyTable.from_ms({1: 1})}}
    spec = spec_of(models, [chain("a", "b", slo_ns=S)], partitions=partitions, limits=Limits(hand_off_ns=0))
    found = build_plan(spec, Observed(tables, {"chain:1": rate}, {}))
    assert found.residency == {"p0": ("a",), "p1": ("b",)}
    assert [each.feasible for each in found.pipelines] == [feasible]


def test_a_model_that_is_nowhere_yet_leaves_its_pipelines_without_a_plan() -> None:
    assert plan_of(chain("a", "b"), {"a": {"cpu1": HALVING}}) is None


def test_figures_that_make_no_sense_leave_a_pipeline_without_a_plan() -> None:
    forever = LatencyTable(((1, 1 << 60),))
    assert plan_of(single("m"), {"m": {"cpu1": forever}}) is None
    partition = PartitionConfig("cpu0", "cpu1", price=float("nan"))
    assert plan_of(single("m"), {"m": {"cpu1": HALVING}}, partitions=(partition,)) is None


def test_a_pipeline_that_cannot_be_planned_leaves_the_others_their_plans() -> None:
    broken = chain("m", "m", name="broken:1", slo_ns=1 << 80)
    sound = msgspec.structs.replace(single("m", name="sound:1"), slo_ns=100 * MS)
    spec = spec_of([model("m", 4)], [broken, sound])
    found = build_plan(spec, Observed({"m": {"cpu1": HALVING}}, {}, {}))
    assert [plan.pipeline for plan in found.pipelines] == ["sound:1"]
    assert list(found.failed) == ["broken:1"]
    assert found.failed["broken:1"].startswith("OverflowError: ")


def test_without_an_objective_there_is_nothing_to_plan() -> None:
    assert plan_of(single("m"), {"m": {"cpu1": HALVING}}, slo_ms=0) is None


def test_the_variant_that_can_take_the_rate_is_chosen() -> None:
    pipeline = PipelineConfig("p:1", (StageConfig("s", "large", variants=("large", "small")),))
    found = plan_of(pipeline, {"large": {"cpu1": SLOWER}, "small": {"cpu1": HALVING}}, rate=300)
    assert found is not None
    assert found.stages[0].model == "small"


def test_40_stages() -> None:
    keys = [f"m{index}" for index in range(40)]
    found = plan_of(chain(*keys), {key: {"cpu1": HALVING} for key in keys}, slo_ms=400)
    assert found is not None
    assert (len(found.stages), found.latency_ns, found.feasible) == (40, 400 * MS, True)


def test_4096_options_a_stage() -> None:
    table = LatencyTable(tuple((size, MS + size * 1000) for size in range(1, 4097)))
    pipeline = msgspec.structs.replace(chain("a", "b", "c"), slo_ns=50 * MS)
    spec = SchedulerSpec(
        tuple(model(key, 4096) for key in "abc"), (pipeline,), (PartitionConfig("cpu0", "cpu1"),), Limits(hand_off_ns=0)
    )
    (found,) = build_plan(spec, Observed({key: {"cpu1": table} for key in "abc"}, {"chain:1": 500.0}, {})).pipelines
    assert found.feasible
    assert found.latency_ns <= 50 * MS
