"""The plans of planners that a server can go by, beside the exact one that chooses at every dispatch."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import CostToGo, FixedOption, GroupSearch, Observed, PipelinePlan
from sluice.batcher.interface.planner_config import PlannerConfig, Replan, ServedPlanner
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.registry import path_planners, planner_of
from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.simulated_gpu import simulate
from tests.support.scheduling.builders import MS, chain, ensemble, model, single, spec_of

SMALL, LARGE = PartitionConfig("small0", "small", 1.0, 0.25), PartitionConfig("large0", "large", 4.0, 1.0)
SERVING = [each.value for each in ServedPlanner]


def plan_of(
    planner: PlannerConfig,
    tables: dict[str, dict[str, LatencyTable]],
    pipeline: PipelineConfig,
    *,
    slo_ms: int = 100,
    rate: float = 0.0,
) -> PipelinePlan:
    spec = spec_of(
        [model(key, 8) for key in tables],
        [msgspec.structs.replace(pipeline, slo_ns=slo_ms * MS)],
        partitions=(SMALL, LARGE),
        limits=Limits(hand_off_ns=0),
    )
    (found,) = build_plan(
        msgspec.structs.replace(spec, planner=planner), Observed(tables, {pipeline.name: rate}, {})
    ).pipelines
    return found


def table(one: float, *, gain: float = 1.0) -> LatencyTable:
    """A row takes `one` ms, and each further one of a batch `gain` times that."""
    return LatencyTable.from_ms({rows: one * (1 + gain * (rows - 1)) for rows in (1, 2, 4, 8)})


def test_a_stage_of_infless_fills_its_batches_for_its_part_of_the_objective_less_their_time() -> None:
    """Batches of up to half of the objective: the most rows a second for the share are 8 on a quarter, in 45 ms."""
    tables = {"m": {"small": table(10, gain=0.5), "large": table(4, gain=0.5)}}
    found = plan_of(PlannerConfig("infless"), tables, single("m"), rate=200.0)
    assert (found.stages[0].rule, found.feasible) == (FixedOption(8, "small", 55 * MS), True)


@pytest.mark.parametrize("name", ["orion", "fast_gshare", "aquatope"])
def test_the_other_planners_fill_batches_for_as_long_as_their_plans_expect(name: str) -> None:
    tables = {"m": {"small": table(10, gain=0.5), "large": table(4, gain=0.5)}}
    (stage,) = plan_of(PlannerConfig(name, seed=3), tables, single("m"), rate=20.0).stages
    assert isinstance(stage.rule, FixedOption)
    service_ns = tables["m"][stage.kind].latency_ns(stage.batch)
    waits_ns = stage.latency_ns - service_ns if stage.batch > 1 else 0
    assert stage.rule == FixedOption(stage.batch, stage.kind, max(waits_ns, 0))


def test_what_follows_a_fixed_stage_is_fixed_as_well() -> None:
    tables = {key: {"small": table(ms), "large": table(ms)} for key, ms in (("a", 5), ("b", 20), ("c", 7))}
    stages = plan_of(PlannerConfig("orion"), tables, chain("a", "b", "c")).stages
    assert [stage.rest.within_ns for stage in stages] == [(27 * MS,), (7 * MS,), (0,)]
    assert stages[0].rest.cost == pytest.approx((0.027,))


def test_planned_once_the_exact_path_is_kept_to() -> None:
    tables = {"m": {"small": table(30), "large": table(10)}}
    for slo_ms, kind in ((30, "small"), (29, "large")):
        (stage,) = plan_of(PlannerConfig(replan=Replan.ONCE), tables, single("m"), slo_ms=slo_ms).stages
        assert stage.rule == FixedOption(1, kind, 0)


def test_a_planner_that_finds_nothing_has_the_quickest_path_and_says_so() -> None:
    tables = {"m": {"small": table(40), "large": table(10)}}
    for name in SERVING:
        found = plan_of(PlannerConfig(name), tables, single("m"), slo_ms=9)
        assert (found.stages[0].kind, found.feasible, found.latency_ns) == ("large", False, 10 * MS)


def test_esg_gives_a_group_its_normalised_part_of_the_time() -> None:
    """Five equal stages are a group of three and one of two, from each stage on."""
    tables = {key: {"small": table(10), "large": table(5)} for key in "abcde"}
    stages = plan_of(PlannerConfig("esg"), tables, chain(*"abcde")).stages
    parts = [stage.rule.share for stage in stages if isinstance(stage.rule, GroupSearch)]
    assert parts == [pytest.approx(3 / 5), pytest.approx(3 / 4), 1.0, 1.0, 1.0]
    # The two others of the first group: both on the large partition, one, or none.
    assert stages[0].rest.within_ns == (10 * MS, 15 * MS, 20 * MS)
    assert stages[0].rest.cost == pytest.approx((0.04, 0.03, 0.02))
    assert stages[4].rest == CostToGo((0,), (0.0,))


def test_host_cores_are_part_of_a_configuration_with_their_price() -> None:
    """Eight rows within 30 ms need two cores, four only one; a core costs as much as a twentieth of a slice."""
    kinds = {"mig-1g+c1": 1.05, "mig-1g+c2": 1.1}
    measured = {
        kind: LatencyTable(tuple((each.batch, each.p50_ns) for each in simulate("resnet50", kind, (1, 2, 4, 8)).cells))
        for kind in kinds
    }
    partitions = [PartitionConfig(kind, kind, price, 1 / 7) for kind, price in kinds.items()]
    for slo_ms, batch, kind in ((30, 8, "mig-1g+c2"), (20, 4, "mig-1g+c1")):
        pipeline = msgspec.structs.replace(single("m"), slo_ns=slo_ms * MS)
        spec = spec_of([model("m", 8)], [pipeline], partitions=partitions, limits=Limits(hand_off_ns=0))
        spec = msgspec.structs.replace(spec, planner=PlannerConfig("esg"))
        (found,) = build_plan(spec, Observed({"m": measured}, {}, {})).pipelines
        assert (found.stages[0].batch, found.stages[0].kind) == (batch, kind)


def test_a_combiner_has_no_rule() -> None:
    tables = {key: {"small": table(10), "large": table(5)} for key in "ab"}
    for name in ("esg", "infless"):
        stages = plan_of(PlannerConfig(name), tables, ensemble("a", "b")).stages
        assert [stage.rule is None for stage in stages] == [False, False, True]


def test_the_search_of_a_planner_is_bounded_by_the_time_that_it_may_take() -> None:
    def bound(config: PlannerConfig) -> dict[str, Any]:
        keywords: dict[str, Any] = getattr(planner_of(config), "keywords")  # noqa: B009
        return keywords

    assert bound(PlannerConfig("orion", limit_ms=20)) == {"max_steps": 100}
    assert bound(PlannerConfig("orion", limit_ms=0.01)) == {"max_steps": 1}
    assert bound(PlannerConfig("esg", limit_ms=20)) == {"kept_paths": 2000}


def test_what_a_server_can_go_by_is_registered() -> None:
    assert set(SERVING) == path_planners().keys() - {"brute_force"}


def test_an_unknown_planner_is_refused() -> None:
    spec = msgspec.structs.replace(spec_of([model("m")]), planner=PlannerConfig("magic"))
    with pytest.raises(ConfigError, match="planner magic: expected one of aquatope"):
        build_plan(spec, Observed({}, {}, {}))


@st.composite
def specs(draw: st.DrawFn) -> tuple[SchedulerSpec, Observed]:
    """Pipelines of random models on three kinds, with objectives that may be out of reach."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    keys = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    kinds = {"1g": 1 / 7, "2g": 2 / 7, "4g": 4 / 7}
    tables = {}
    for key in keys:
        base, each, power = random.uniform(1, 20), random.uniform(0.2, 5), random.uniform(0.3, 0.9)
        tables[key] = {
            kind: LatencyTable.from_ms({rows: (base + each * rows) * share**-power for rows in (1, 2, 4, 8)})
            for kind, share in kinds.items()
        }
    shape = draw(st.sampled_from([chain(*keys), ensemble(*keys)]))
    pipeline = msgspec.structs.replace(shape, slo_ns=round(random.uniform(10, 400) * MS))
    partitions = [
        PartitionConfig(f"{kind}-{each}", kind, 7 * share, share) for kind, share in kinds.items() for each in range(2)
    ]
    planner = PlannerConfig(draw(st.sampled_from(SERVING)), draw(st.sampled_from(Replan)), draw(st.integers(0, 9)), 20)
    spec = spec_of([model(key) for key in keys], [pipeline], partitions=partitions)
    rate = draw(st.sampled_from([0.0, 5.0, 40.0]))
    return msgspec.structs.replace(spec, planner=planner), Observed(tables, {pipeline.name: rate}, {})


@settings(deadline=None, max_examples=12)
@given(specs())
def test_no_plan_of_any_planner_is_over_its_budget(case: tuple[SchedulerSpec, Observed]) -> None:
    spec, observed = case
    plan = build_plan(spec, observed)
    assert plan.failed == {}
    (found,) = plan.pipelines
    if found.feasible:
        assert found.latency_ns <= spec.pipelines[0].slo_ns
    kinds = {partition.kind for partition in spec.partitions}
    for stage in found.stages:
        match stage.rule:
            case FixedOption(rows, kind, wait_ns):
                assert (rows, kind) == (stage.batch, stage.kind)
                assert kind in kinds
                assert 0 <= wait_ns <= spec.pipelines[0].slo_ns or not found.feasible
            case GroupSearch(share):
                assert 0 < share <= 1
    assert build_plan(spec, observed) == plan
