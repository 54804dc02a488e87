"""Plans at estimated rates and shares of any size, down to 0: they exist, and have those of 0 as their limit."""

import math
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import Limits, PipelineConfig, PolicyConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed, PipelinePlan, Plan
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.demand import demand_table
from sluice.batcher.planner.problem.problem import MAX_LATENCY_NS
from sluice.batcher.planner.stage_latency import LONGEST_WAIT_NS, stage_latency
from sluice.batcher.planner.stage_options import pipeline_candidates
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.gateway.what_if.planning import WhatIf
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, cascade, chain, ensemble, model, spec_of

KEYS = ("a", "b", "c")


def falling_to_0(most: float) -> st.SearchStrategy[float]:
    """Numbers of all magnitudes: the smallest that there are, 0 itself, and those that are not normal.

    None of the larger ones is round, so that a whole number of rows never arrives in the time of a batch.
    """
    return st.one_of(
        st.sampled_from([0.0, 5e-324, 1e-308, 1e-100]),
        st.floats(-30, 0).map(lambda power: most * 0.9973 * 10.0**power),
        st.floats(0, most).map(lambda number: number * 0.9973),
    )


class Case(NamedTuple):
    """A pipeline whose models all have the same policy; the shares are its stages'."""

    spec: SchedulerSpec
    tables: dict[str, dict[str, LatencyTable]]
    rate: float
    shares: tuple[float, ...]

    @property
    def pipeline(self) -> PipelineConfig:
        return self.spec.pipelines[0]

    def observed(self, rate: float | None = None, shares: tuple[float, ...] | None = None) -> Observed:
        name = self.pipeline.name
        return Observed(
            self.tables, {name: self.rate if rate is None else rate}, {name: self.shares if shares is None else shares}
        )

    def plan(self, rate: float | None = None, shares: tuple[float, ...] | None = None) -> Plan:
        return build_plan(self.spec, self.observed(rate, shares))


POLICIES = st.sampled_from(
    [
        DeadlineSettings(Objective.LATENCY),
        DeadlineSettings(Objective.COST),
        NoBatchingSettings(),
        TimeoutConfig(max_delay_ns=5 * MS),
        TimeoutConfig(max_delay_ns=1 << 62),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> LatencyTable:
    """A batch takes longer than one of half its rows, but not twice as long; small ones may be missing."""
    fixed, each = draw(st.integers(0, 20)), draw(st.integers(1, 10))
    sizes = draw(st.sampled_from([(1,), (1, 2, 4, 8), (1, 8), (8,)]))
    return LatencyTable(tuple((size, (fixed + each * size) * MS // 10) for size in sizes))


@st.composite
def cases(draw: st.DrawFn, policies: st.SearchStrategy[PolicyConfig] = POLICIES) -> Case:
    count = draw(st.integers(2, 3))
    keys = KEYS[:count]
    shape = draw(st.sampled_from([chain(*keys), cascade(*keys), ensemble(*keys)]))
    pipeline = msgspec.structs.replace(shape, slo_ns=draw(st.sampled_from([5, 50, 500])) * MS)
    partitions = [f"cpu{number}" for number in range(draw(st.integers(1, 3)))]
    policy = draw(policies)
    spec = spec_of(
        [model(key, 8, policy) for key in keys], [pipeline], partitions=partitions, limits=Limits(hand_off_ns=0)
    )
    shares = (1.0, *(draw(falling_to_0(1.0)) for _ in pipeline.stages[1:]))
    return Case(spec, {key: {"cpu1": draw(tables())} for key in keys}, draw(falling_to_0(5000.0)), shares)


def only(plan: Plan) -> PipelinePlan:
    """The plan of the one pipeline, which is there."""
    assert plan.failed == {}
    (pipeline,) = plan.pipelines
    return pipeline


@settings(max_examples=500, deadline=None)
@given(cases())
def test_at_any_rate_and_any_shares_there_is_a_plan_with_finite_figures(case: Case) -> None:
    plan = only(case.plan())
    assert 0 <= plan.latency_ns <= len(plan.stages) * (LONGEST_WAIT_NS + 1000 * MS) < MAX_LATENCY_NS
    assert not plan.feasible or plan.latency_ns <= case.pipeline.slo_ns
    for stage in plan.stages:
        figures = (plan.cost, stage.cost, *stage.rest.cost)
        assert all(math.isfinite(cost) and 0 <= cost < 1 for cost in figures)
        assert 0 <= stage.latency_ns <= LONGEST_WAIT_NS + 1000 * MS


def shares_of(case: Case, share: float) -> tuple[float, ...]:
    """All stages but the first have this share of the rows that are offered to them."""
    return (1.0, *(share for _ in case.shares[1:]))


@settings(max_examples=300, deadline=None)
@given(cases(), st.floats(-150, -12))
def test_as_the_share_of_a_stage_vanishes_its_plan_has_a_limit(case: Case, power: float) -> None:
    """The product of the shares of two stages is a number above 0, too."""
    found, limit, never = (only(case.plan(shares=shares_of(case, share))) for share in (10**power, 1e-150, 0.0))
    assert (found.feasible, found.latency_ns) == (limit.feasible, limit.latency_ns)
    assert abs(found.cost - limit.cost) <= 1e-6 * limit.cost
    # For what never runs no time is left, which may save something.
    assert found.feasible == never.feasible
    assert not found.feasible or found.latency_ns <= case.pipeline.slo_ns
    assert not found.feasible or found.cost >= never.cost * (1 - 1e-6)


@settings(max_examples=300, deadline=None)
@given(cases(), st.floats(-320, -12))
def test_with_time_enough_the_limit_of_the_plan_is_that_of_a_share_of_0(case: Case, power: float) -> None:
    pipeline = msgspec.structs.replace(case.pipeline, slo_ns=3 * LONGEST_WAIT_NS + 3000 * MS)
    ample = case._replace(spec=msgspec.structs.replace(case.spec, pipelines=(pipeline,)))
    found, never = (only(ample.plan(shares=shares_of(case, share))) for share in (10**power, 0.0))
    assert (found.feasible, found.latency_ns) == (never.feasible, never.latency_ns)
    assert abs(found.cost - never.cost) <= 1e-6 * never.cost


@settings(max_examples=300, deadline=None)
@given(cases(), st.floats(-320, -12))
def test_as_the_rate_vanishes_the_plan_goes_to_that_without_traffic(case: Case, power: float) -> None:
    found, limit = only(case.plan(rate=10**power)), only(case.plan(rate=0.0))
    assert found.feasible == limit.feasible
    assert abs(found.latency_ns - limit.latency_ns) <= 1e-6 * limit.latency_ns + 1
    assert abs(found.cost - limit.cost) <= 1e-6 * limit.cost


@settings(max_examples=200, deadline=None)
@given(cases(st.sampled_from([DeadlineSettings(Objective.LATENCY), NoBatchingSettings()])), st.floats(0.5, 0.999))
def test_where_batches_are_not_waited_for_a_stage_that_runs_less_often_is_not_slower(case: Case, less: float) -> None:
    """From a share of a hundredth on; above, what is left to it by the others falls as well."""
    share = min(*case.shares, 0.01)
    others = tuple(0.0 for _ in case.shares[2:])
    before, after = (
        pipeline_candidates(demand_table(case.spec, case.observed(shares=(1.0, each, *others))), case.pipeline)[1]
        for each in (share, share * less)
    )
    sooner = {each.option: each for each in after}
    for candidate in before:
        if candidate.predicted is not None:
            assert sooner[candidate.option].predicted is not None
            assert sooner[candidate.option].latency_ns <= candidate.latency_ns


@settings(max_examples=300, deadline=None)
@given(
    tables(),
    st.sampled_from([None, 0, 5 * MS, 1 << 62]),
    falling_to_0(2000.0),
    falling_to_0(4.0).filter(bool),
    st.sampled_from([50 * MS, LONGEST_WAIT_NS]),
)
def test_a_stage_s_latency_is_bounded_at_any_rate_on_any_part_of_a_server(
    table: LatencyTable, max_wait_ns: int | None, rate: float, servers: float, within_ns: int
) -> None:
    found = stage_latency(table.latency_ns, 8, rate, servers, max_wait_ns, within_ns=within_ns)
    if found is not None:
        slowest_ns = max(table.latency_ns(rows) for rows in range(1, 9))
        assert 0 < found.p50_ns <= found.p99_ns <= slowest_ns + LONGEST_WAIT_NS
        assert 1 <= found.rows <= found.rows99 <= 8
        if max_wait_ns is None:
            assert found.fill99_ns + table.latency_ns(8) <= within_ns or not found.fill99_ns


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_highest_rate_is_found_whatever_the_shares(case: Case) -> None:
    what_if = WhatIf(case.spec, case.tables, {case.pipeline.name: case.shares}, 0.99)
    highest = what_if.highest_rate(case.pipeline.slo_ns)
    assert 0 <= highest <= what_if.at(0.0).capacity
    assert not highest or what_if.at(highest).fits(case.pipeline.slo_ns)
