"""The partitions of each class that the rates keep busy."""

import pytest

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.fleet.fleet import new_model
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.plan_data import CostToGo, PipelinePlan, StagePlan
from sluice.batcher.policies.registry import select_policy
from sluice.batcher.prediction.pipeline_times import predict
from sluice.batcher.scaling.demand import UNKNOWN_LOAD, Demand, PartitionPool, StageRows, row_ns, streams
from sluice.batcher.scheduler.pipelines import new_pipeline
from sluice.batcher.state import ModelState
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import INFINITE_NS
from tests.support.scheduling.builders import MS, chain, model

TABLE = LatencyTable.from_ms({1: 10, 2: 12, 4: 16, 8: 24, 16: 40})
"""2.5 ms a row in batches of 16, 3 ms in batches of 8, 10 ms for single rows."""


def model_of(key: str = "m:1", **tables: LatencyTable) -> ModelState:
    config = model(key, 16)
    state = new_model(config, select_policy(config.policy, Limits()))
    state.estimates |= {kind: LatencyEstimate(table, 16, 0) for kind, table in tables.items()}
    return state


def remote(count: int = 8, kind: str = "k", price: float = 1.0, models: frozenset[str] | None = None) -> PartitionPool:
    return PartitionPool(kind, models, count, 0.5, price)


@pytest.mark.parametrize(("budget_ms", "row_ms"), [(100, 2.5), (50, 3), (25, 6), (5, 10)])
def test_batches_are_as_large_as_the_time_of_two_of_them_allows(budget_ms: int, row_ms: float) -> None:
    assert row_ns(StageRows(model_of(k=TABLE), 1.0, budget_ms * MS), "k", 0) == row_ms * MS


def test_without_an_objective_batches_are_as_large_as_is_efficient() -> None:
    assert row_ns(StageRows(model_of(k=TABLE), 1.0, INFINITE_NS), "k", 0) == 2.5 * MS


def test_a_class_is_as_busy_as_its_rows_take() -> None:
    assert Demand([], [remote()], 0).loads([StageRows(model_of(k=TABLE), 400.0, 100 * MS)]) == [pytest.approx(1.0)]


def test_partitions_that_are_there_anyway_come_first() -> None:
    stream = StageRows(model_of(k=TABLE), 400.0, 100 * MS)
    local = PartitionPool("k", None, 1, 0.7)
    assert Demand([local], [remote()], 0).loads([stream]) == [pytest.approx(0.3)]
    assert Demand([local], [remote()], 0).loads([stream._replace(rows=200.0)]) == [0.0]


def test_all_models_of_partitions_that_are_too_few_keep_the_same_share() -> None:
    first, second = model_of("a:1", k=TABLE), model_of("b:1", k=TABLE)
    both = [StageRows(first, 400.0, 100 * MS), StageRows(second, 400.0, 100 * MS)]
    only_first = remote(models=frozenset({"a:1"}))
    assert Demand([PartitionPool("k", None, 2, 0.7)], [only_first], 0).loads(both) == [pytest.approx(0.3)]


def test_rows_go_to_the_class_where_they_cost_the_least_as_far_as_it_grows() -> None:
    stream = StageRows(model_of(k=TABLE), 400.0, 100 * MS)
    dear, cheap = remote(price=2.0), remote(price=1.0, count=1)
    assert Demand([], [dear, cheap], 0).loads([stream]) == [pytest.approx(0.5), pytest.approx(0.5)]


def test_the_last_class_gets_what_no_class_has_room_for() -> None:
    stream = StageRows(model_of(k=TABLE), 4000.0, 100 * MS)
    assert Demand([], [remote(1), remote(1, price=2.0)], 0).loads([stream]) == [pytest.approx(0.5), pytest.approx(9.5)]


def test_rows_of_a_model_that_is_unknown_on_a_class_are_some_load() -> None:
    assert Demand([], [remote()], 0).loads([StageRows(model_of(), 400.0, INFINITE_NS)]) == [UNKNOWN_LOAD]


def test_a_model_that_no_class_may_hold_is_no_load() -> None:
    other = remote(models=frozenset({"other:1"}))
    assert Demand([], [other], 0).loads([StageRows(model_of(k=TABLE), 400.0, INFINITE_NS)]) == [0.0]


def test_the_plan_in_force_splits_the_objective_between_stages() -> None:
    models = {key: model_of(key, k=TABLE) for key in ("a:1", "b:1")}
    pipeline = new_pipeline(0, chain("a:1", "b:1", slo_ns=80 * MS), models)
    predict(pipeline, 0)
    stage = StagePlan("a:1", 1, "k", 30 * MS, 0.0, CostToGo((0,), (0.0,)))
    plan = PipelinePlan("chain:1", (stage, StagePlan("b:1", 1, "k", 10 * MS, 0.0, stage.rest)), 40 * MS, 0.0, True)
    found = streams({"chain:1": pipeline}, {"chain:1": 5.0}, {"chain:1": plan})
    assert found == [StageRows(models["a:1"], 5.0, 60 * MS), StageRows(models["b:1"], 5.0, 20 * MS)]
    without_plan = streams({"chain:1": pipeline}, {"chain:1": 5.0}, {})
    assert [each.budget_ns for each in without_plan] == [40 * MS, 40 * MS]


def test_rows_are_counted_by_how_often_they_reach_a_stage() -> None:
    models = {key: model_of(key, k=TABLE) for key in ("a:1", "b:1")}
    pipeline = new_pipeline(0, chain("a:1", "b:1"), models)
    predict(pipeline, 0)
    pipeline.reach[1] = 0.25
    found = streams({"chain:1": pipeline}, {"chain:1": 8.0, "other:1": 1.0}, {})
    assert [each.rows for each in found] == [8.0, 2.0]
    assert streams({"chain:1": pipeline}, {}, {}) == []
