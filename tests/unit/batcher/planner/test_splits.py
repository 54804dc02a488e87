"""The planner asks for cores when another split of them would be better."""

import pytest

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.interface.resize_data import Ask, Cores, CoreStep, Judgement, Reason, Split
from sluice.batcher.planner.splits import MAX_STEPS, best_step, judge
from sluice.batcher.scheduler.core_steps import steps
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.balance import LoadChange
from tests.support.scheduling.builders import MS, cascade, model, single, spec_of

TABLES = {
    "m": {
        "cpu1": LatencyTable.from_ms({1: 10}),
        "cpu2": LatencyTable.from_ms({1: 6}),
        "cpu3": LatencyTable.from_ms({1: 5}),
    }
}
"""A second core makes it quicker, and a row dearer: 10, 12 and 15 thousandths of a core's price."""


def spec(slo_ms: int = 0, **cores: int) -> SchedulerSpec:
    """One model on partitions with these numbers of cores, at a price of 1 a core; an objective of 0 is none."""
    pipeline = PipelineConfig("m", single("m").stages, slo_ns=slo_ms * MS)
    partitions = tuple(PartitionConfig(name, f"cpu{size}", float(size)) for name, size in cores.items())
    return spec_of([model("m", 1)], [pipeline], partitions=partitions)


def asked(
    spec: SchedulerSpec,
    rate: float,
    held: dict[str, Cores],
    own: dict[str, Cores],
    spare: Cores = (),
    more: float = 1.25,
) -> Ask | None:
    """The cores that the plan asks for; the traffic may become `more` times as much."""
    splits = [
        Split(step, tuple(PartitionConfig(name, f"cpu{len(cores)}", float(len(cores))) for name, cores in step.changes))
        for step in steps(held, own, spare)
    ]
    observed = Observed(TABLES, {"m": rate}, {})
    return best_step(spec, observed, {"m": more * rate}, splits)


def test_a_rate_beyond_the_cap_asks_for_a_core_without_an_owner() -> None:
    found = asked(spec(a=1), 95, {"a": (0,)}, {"a": (0,)}, (1,))
    assert found is not None
    assert (found.step, found.reason) == (CoreStep((LoadChange("a", (0, 1)),), 1), Reason.OBJECTIVE)
    assert (found.before.missed, found.after.missed) == (("m",), ())
    # A hand-off of 0.15 ms is part of every batch: 95 rows a second take 95 x 10.15 ms of each second, or 95 x 6.15 ms.
    assert (found.before.busiest, found.after.busiest) == pytest.approx((0.96425, 0.58425))
    assert found.before.overload == pytest.approx(0.96425 / 0.9)
    assert found.after.overload == 1
    assert (found.before.cost, found.after.cost) == pytest.approx((0.95, 1.14))


def test_within_the_cap_nothing_is_asked_for() -> None:
    assert asked(spec(a=1), 80, {"a": (0,)}, {"a": (0,)}, (1,)) is None


def test_an_objective_that_is_missed_asks_for_a_core_and_one_that_no_core_helps_does_not() -> None:
    for slo_ms, wanted in ((8, True), (12, False), (5, False)):
        found = asked(spec(slo_ms=slo_ms, a=1), 1, {"a": (0,)}, {"a": (0,)}, (1,))
        assert (found is not None) is wanted, slo_ms


def test_without_a_spare_core_one_is_moved_where_all_objectives_are_met_then() -> None:
    """Two pipelines: that of m needs two cores, that of n is content with one of its two."""
    tables = {**TABLES, "n": {"cpu1": LatencyTable.from_ms({1: 1}), "cpu2": LatencyTable.from_ms({1: 1})}}
    partitions = (PartitionConfig("a", "cpu1", 1.0, models=("m",)), PartitionConfig("b", "cpu2", 2.0, models=("n",)))
    both = spec_of([model("m", 1), model("n", 1)], [single("m"), single("n")], partitions=partitions)
    held: dict[str, Cores] = {"a": (0,), "b": (1, 2)}
    splits = [
        Split(
            step,
            tuple(
                PartitionConfig(name, f"cpu{len(cores)}", float(len(cores)), models=("m" if name == "a" else "n",))
                for name, cores in step.changes
            ),
        )
        for step in steps(held, held, ())
    ]
    rates = {"m": 95.0, "n": 10.0}
    found = best_step(both, Observed(tables, rates, {}), rates, splits)
    assert found is not None
    assert found.step == CoreStep((LoadChange("b", (1,)), LoadChange("a", (0, 2))), 0, free=False)
    assert best_step(both, Observed(tables, rates | {"m": 50.0}, {}), rates, splits) is None


def test_where_no_single_core_is_enough_the_one_that_relieves_most_is_asked_for() -> None:
    found = asked(spec(a=1), 250, {"a": (0,)}, {"a": (0,)}, (1,))
    assert found is not None
    assert (found.before.missed, found.after.missed) == (("m",), ("m",))
    assert found.after.overload == pytest.approx(250 * 0.00615 / 0.9)


def test_a_lent_core_that_costs_more_than_it_brings_is_given_back_if_more_traffic_would_be_served_without_it() -> None:
    held: dict[str, Cores] = {"a": (0, 1)}
    found = asked(spec(a=2), 60, held, {"a": (0,)})
    assert found is not None
    assert (found.step, found.reason) == (CoreStep((LoadChange("a", (0,)),), -1), Reason.COST)
    assert (found.before.cost, found.after.cost) == pytest.approx((0.72, 0.6))
    # A quarter more than 75 rows a second take 95 % of the time of one core.
    assert asked(spec(a=2), 75, held, {"a": (0,)}) is None
    assert asked(spec(a=2), 60, held, {"a": (0, 1)}) is None


def test_to_save_money_no_core_is_taken_that_costs_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores are three times as quick as one: cheaper a row, but only a partition of a fixed price gets one."""
    monkeypatch.setitem(TABLES["m"], "cpu2", LatencyTable.from_ms({1: 3}))
    assert asked(spec(a=1), 10, {"a": (0,)}, {"a": (0,)}, (1,)) is None
    fixed = spec_of([model("m", 1)], [single("m")], partitions=(PartitionConfig("a", "cpu1", 2.0),))
    found = asked(fixed, 10, {"a": (0,)}, {"a": (0,)}, (1,))
    assert found is not None
    assert (found.step.cores, found.reason) == (1, Reason.COST)


def test_a_saving_of_less_than_a_tenth_is_not_worth_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for two_ms in (5.5, 5.6):
        monkeypatch.setitem(TABLES["m"], "cpu2", LatencyTable.from_ms({1: two_ms}))
        found[two_ms] = asked(spec(a=2), 10, {"a": (0, 1)}, {"a": (0,)})
    assert found[5.5] is None
    assert found[5.6] is not None


def test_without_traffic_what_was_lent_is_given_back() -> None:
    found = asked(spec(a=2), 0, {"a": (0, 1)}, {"a": (0,)}, (2,))
    assert found is not None
    assert (found.step.cores, found.before.cost) == (-1, 0.0)
    assert asked(spec(a=1), 0, {"a": (0,)}, {"a": (0,)}, (2,)) is None


def test_of_partitions_that_are_alike_one_is_judged_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[SchedulerSpec] = []

    def count(spec: SchedulerSpec, observed: Observed) -> Judgement:
        judged.append(spec)
        return Judgement(("m",), 1.0, 10 / 9, 1.0)

    monkeypatch.setattr("sluice.batcher.planner.splits.judge", count)
    names = {f"p{number}": 1 for number in range(100)}
    held: dict[str, Cores] = {name: (number,) for number, name in enumerate(names)}
    assert asked(spec(**names), 10, held, held, (100,)) is None
    assert len(judged) == 2
    assert MAX_STEPS == 32


def test_nothing_is_judged_while_nothing_is_known_of_a_model() -> None:
    both = spec_of([model("m", 1), model("n", 1)], [cascade("m", "n")], partitions=(PartitionConfig("a", "cpu1"),))
    name = both.pipelines[0].name
    assert judge(both, Observed(TABLES, {name: 1.0}, {})) is None
    assert judge(both, Observed(TABLES, {name: 0.0}, {})) == Judgement((), 0.0, 1.0, 0.0)
