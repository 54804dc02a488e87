"""Partitions come up, are lost and change their models; equal ones share a group."""

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.partition_group import first_idle, start_ns
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.events import PartitionReady
from sluice.batcher.scheduler.pipelines import new_pipeline
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import GAINING, MS, ONE, S, model, single, spec_of

THREE = LatencyTable.from_ms({1: 3})
SPEC = spec_of(
    [model("m:1"), model("n:1")],
    partitions=(
        PartitionConfig("a", "fast", price=4),
        PartitionConfig("b", "fast", price=4),
        PartitionConfig("c", "fast", price=2),
        PartitionConfig("d", "slow", price=2),
    ),
)
BOTH = {"m:1": ONE, "n:1": ONE}


def fleet_of(spec: SchedulerSpec = SPEC, **tables: dict[str, LatencyTable]) -> Fleet:
    """A fleet whose partitions are up since 0 ns, with both models unless `tables` says otherwise."""
    fleet = Fleet(spec)
    for partition in spec.partitions:
        fleet.ready(PartitionReady(partition.name, tables.get(partition.name, BOTH)))
    return fleet


def groups(fleet: Fleet) -> list[tuple[list[str], list[str]]]:
    """The partitions of each group, and its models."""
    return [([each.name for each in group.partitions.values()], sorted(group.models)) for group in fleet.groups]


def hosts(fleet: Fleet, key: str) -> list[str]:
    state = fleet.models[key]
    return [partition.name for partition in state.partitions]


def test_partitions_of_one_kind_and_price_with_the_same_models_share_a_group() -> None:
    assert groups(fleet_of()) == [(["a", "b"], ["m:1", "n:1"]), (["c"], ["m:1", "n:1"]), (["d"], ["m:1", "n:1"])]


def test_partitions_with_other_models_are_no_equals() -> None:
    fleet = fleet_of(b={"m:1": ONE})
    assert groups(fleet)[:2] == [(["a"], ["m:1", "n:1"]), (["b"], ["m:1"])]
    assert hosts(fleet, "m:1") == ["a", "b", "c", "d"]
    assert hosts(fleet, "n:1") == ["a", "c", "d"]


def test_one_that_comes_to_hold_the_same_models_joins_its_equals() -> None:
    fleet = fleet_of(b={"m:1": ONE})
    fleet.move(fleet.partitions["b"], frozenset(BOTH))
    assert groups(fleet) == [(["a", "b"], ["m:1", "n:1"]), (["c"], ["m:1", "n:1"]), (["d"], ["m:1", "n:1"])]
    assert hosts(fleet, "n:1") == ["a", "b", "c", "d"]


def test_a_partition_that_is_lost_and_comes_back_stays_in_its_group() -> None:
    fleet = fleet_of()
    group = fleet.partitions["b"].group
    assert group is not None
    fleet.lost("b", MS)
    assert (group.ready_count, list(group.partitions)) == (1, [0, 1])
    fleet.lost("a", 2 * MS)
    assert group.ready_count == 0
    assert first_idle(group) is None
    # It is taken to be back after a second.
    assert start_ns(group, 3 * MS) == S + MS
    fleet.ready(PartitionReady("b", BOTH))
    assert fleet.partitions["b"].group is group
    assert group.ready_count == 1
    assert first_idle(group) is fleet.partitions["b"]
    assert start_ns(group, 5 * MS) == 5 * MS


def test_one_that_comes_back_with_other_models_goes_to_another_group() -> None:
    fleet = fleet_of()
    fleet.lost("a", MS)
    fleet.ready(PartitionReady("a", {"n:1": ONE}))
    assert groups(fleet)[0] == (["b"], ["m:1", "n:1"])
    assert groups(fleet)[-1] == (["a"], ["n:1"])
    assert hosts(fleet, "m:1") == ["b", "c", "d"]


def test_a_model_is_served_while_a_partition_that_holds_it_is_up() -> None:
    fleet = fleet_of(a={"m:1": ONE}, b={"m:1": ONE}, c={"m:1": ONE}, d={"n:1": ONE})
    assert fleet.models["n:1"].served
    fleet.lost("d", MS)
    assert [key for key, state in fleet.models.items() if not state.served] == ["n:1"]
    fleet.ready(PartitionReady("d", {}))
    assert fleet.models["n:1"].groups == []
    assert [key for key, state in fleet.models.items() if not state.served] == ["n:1"]
    fleet.ready(PartitionReady("c", BOTH))
    assert all(state.served for state in fleet.models.values())


def test_of_two_tables_of_one_kind_the_faster_cells_count() -> None:
    fleet = fleet_of(
        a={"m:1": LatencyTable.from_ms({1: 2, 4: 3})},
        b={"m:1": LatencyTable.from_ms({1: 1, 4: 5})},
        c={},
        d={"m:1": THREE},
    )
    estimates = fleet.models["m:1"].estimates
    assert (estimates["fast"].service_ns(1), estimates["fast"].service_ns(4)) == (MS, 3 * MS)
    assert estimates["slow"].service_ns(4) == 3 * MS


def test_a_table_with_other_sizes_replaces_the_one_before() -> None:
    fleet = fleet_of()
    fleet.learn("m:1", "fast", GAINING)
    assert fleet.models["m:1"].estimates["fast"].service_ns(8) == 1_400_000
    assert fleet.models["m:1"].quickest_ns == MS


def test_a_pipeline_is_degraded_while_a_partition_that_it_could_use_is_away() -> None:
    fleet = Fleet(SPEC)
    pipeline = new_pipeline(0, PipelineConfig("m:1", single("m:1").stages), fleet.models)
    fleet.models["m:1"].pipelines.append(pipeline)
    assert pipeline.degraded
    for name in "abcd":
        fleet.ready(PartitionReady(name, BOTH))
        assert not pipeline.degraded  # those that have never been up are not missed
    fleet.lost("d", MS)
    assert pipeline.degraded
    fleet.ready(PartitionReady("d", {"n:1": ONE}))
    assert not pipeline.degraded


def test_an_equal_that_comes_up_makes_the_pipelines_predict_again() -> None:
    fleet = Fleet(SPEC)
    pipelines = [new_pipeline(number, single(key), fleet.models) for number, key in enumerate(("m:1", "n:1"))]
    for pipeline in pipelines:
        fleet.models[pipeline.config.name].pipelines.append(pipeline)
    fleet.ready(PartitionReady("a", {"m:1": ONE}))
    before = [pipeline.changes for pipeline in pipelines]
    fleet.ready(PartitionReady("b", {"m:1": ONE}))
    assert [pipeline.changes > known for pipeline, known in zip(pipelines, before, strict=True)] == [True, False]


def test_an_equal_that_comes_up_beside_one_that_is_away_leaves_its_pipelines_degraded() -> None:
    fleet = Fleet(SPEC)
    pipeline = new_pipeline(0, single("m:1"), fleet.models)
    fleet.models["m:1"].pipelines.append(pipeline)
    fleet.ready(PartitionReady("a", BOTH))
    fleet.lost("a", MS)
    fleet.ready(PartitionReady("b", BOTH))
    assert pipeline.degraded
    fleet.ready(PartitionReady("a", BOTH))
    assert not pipeline.degraded


def test_the_groups_of_a_model_stay_in_the_order_in_which_they_were_made() -> None:
    fleet = fleet_of(b={"m:1": ONE})
    fleet.move(fleet.partitions["a"], frozenset({"m:1"}))
    fleet.move(fleet.partitions["d"], frozenset({"m:1"}))
    fleet.move(fleet.partitions["d"], frozenset(BOTH))
    assert [group.number for group in fleet.models["m:1"].groups] == [1, 2, 3]
    assert [group.number for group in fleet.models["n:1"].groups] == [2, 3]
    assert groups(fleet) == [(["b", "a"], ["m:1"]), (["c"], ["m:1", "n:1"]), (["d"], ["m:1", "n:1"])]
