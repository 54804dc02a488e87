"""Which division of the cores is chosen, and why none is."""

from sluice.gateway.what_if.answer import Bottleneck, Infeasible, PlanAnswer, PlannedConfiguration
from sluice.gateway.what_if.divisions import Division, choose, core_divisions
from sluice.mps.partitions.cpu import usable_cores
from sluice.mps.partitions.partition import CpuPartition


def plan(*, busy: float, cost_per_1000: float = 1.0, rate: float = 100.0, why: Infeasible | None = None) -> PlanAnswer:
    return PlanAnswer(
        pipeline="p:1",
        slo_ms=50,
        rate=rate,
        percentile=99,
        planner="exact",
        partitions={"cpu1": 2},
        residency={},
        simulated=False,
        assumptions=(),
        tables=(),
        feasible=why is None,
        plan=PlannedConfiguration((), 1.0, 2.0, cost_per_1000),
        front=(),
        runner_up=None,
        bottleneck=Bottleneck("s", "m:1", 1000.0, busy, busy),
        highest_rate=500.0,
        limited_by=None,
        lowest_slo_ms=2.0,
        exact_cost_per_1000=None,
        infeasible=why,
    )


def division(*plans: PlanAnswer) -> Division:
    return Division((CpuPartition("cpu0", (0,)),), {f"p{index}:1": each for index, each in enumerate(plans)})


TOO_FAST = Infeasible("s", "the fastest configuration takes 60.000 ms, 10.000 ms too long", 10.0, None, 60.0, 20.0)


def test_the_cheapest_division_that_fits_is_chosen() -> None:
    dear = division(plan(busy=0.1, cost_per_1000=2.0))
    cheap = division(plan(busy=0.5, cost_per_1000=1.0))
    assert choose([dear, cheap]) is cheap
    assert cheap.cost_per_s == 0.1


def test_the_first_of_equals_is_chosen() -> None:
    first, second = division(plan(busy=0.1)), division(plan(busy=0.1))
    assert choose([first, second]) is first


def test_what_does_not_fit_is_never_chosen_before_what_does() -> None:
    late = division(plan(busy=0.1, cost_per_1000=0.1, why=TOO_FAST))
    fits = division(plan(busy=0.8))
    assert choose([late, fits]) is fits
    assert choose([late]) is late
    assert list(late.reasons()) == [
        "p0:1: the fastest configuration takes 60.000 ms, 10.000 ms too long; possible instead: 20 requests/s or an "
        "objective of 60.000 ms"
    ]


def test_pipelines_that_fit_alone_may_be_too_much_together() -> None:
    both = division(plan(busy=0.5), plan(busy=0.5))
    assert not both.is_feasible
    assert list(both.reasons()) == [
        "together the pipelines take 100% of the partitions' time with their best batches, expected at most 90%"
    ]
    assert division(plan(busy=0.4), plan(busy=0.4)).is_feasible


def test_the_cores_are_divided_into_ever_larger_sets() -> None:
    cores = len(usable_cores())
    counts = [len(each) for each in core_divisions()]
    assert counts[0] == cores
    assert counts[-1] == 1
    assert all(
        sum(len(each.cores) for each in division if isinstance(each, CpuPartition)) == cores
        for division in core_divisions()
    )


def test_no_division_but_the_first_has_too_few_partitions() -> None:
    cores = len(usable_cores())
    assert [len(each) for each in core_divisions(cores)] == [cores]
    assert [len(each) for each in core_divisions(cores + 1)] == [cores]
