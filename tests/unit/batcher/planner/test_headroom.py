"""The factor by which traffic can grow."""

import msgspec
import pytest

from sluice.batcher.interface.config import Limits, PartitionConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.headroom import MOST_PIPELINES, headrooms
from sluice.batcher.planner.stage_latency import RHO_MAX
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, model, single, spec_of

TABLE = LatencyTable.from_ms({1: 10, 2: 10, 4: 10})
BEST_RATE = 400.0
"""Rows a second in batches of four."""


def spec(*names: str, slo_ms: int = 10_000, partitions: int = 1) -> SchedulerSpec:
    return spec_of(
        [model(name, 4) for name in names],
        [msgspec.structs.replace(single(name), slo_ns=slo_ms * MS) for name in names],
        partitions=tuple(PartitionConfig(f"cpu{number}", "cpu1") for number in range(partitions)),
        limits=Limits(hand_off_ns=0),
    )


def observed(**rates: float) -> Observed:
    return Observed({name: {"cpu1": TABLE} for name in rates}, rates, {})


def test_with_time_enough_traffic_can_grow_until_the_partitions_are_busy() -> None:
    for rate in (10.0, 40.0, 200.0):
        growth = headrooms(spec("m"), observed(m=rate))["m"]
        assert growth == pytest.approx(RHO_MAX * BEST_RATE / rate, rel=0.1)


def test_more_partitions_leave_more_headroom_and_a_tight_objective_leaves_less() -> None:
    one = headrooms(spec("m"), observed(m=50.0))["m"]
    two = headrooms(spec("m", partitions=2), observed(m=50.0))["m"]
    tight = headrooms(spec("m", slo_ms=25), observed(m=50.0))["m"]
    assert two == pytest.approx(2 * one, rel=0.1)
    assert tight < one


def test_other_pipelines_keep_their_traffic() -> None:
    both = headrooms(spec("m", "n"), observed(m=50.0, n=100.0))
    assert both["m"] == pytest.approx((RHO_MAX * BEST_RATE - 100) / 50, rel=0.15)
    assert both["n"] == pytest.approx((RHO_MAX * BEST_RATE - 50) / 100, rel=0.15)
    alone = headrooms(spec("m", "n"), observed(m=50.0, n=0.0))
    assert alone.keys() == {"m"}


def test_too_much_traffic_or_too_little_time_is_below_one() -> None:
    assert headrooms(spec("m"), observed(m=2 * BEST_RATE))["m"] == pytest.approx(RHO_MAX / 2, rel=0.1)
    assert headrooms(spec("m", slo_ms=9), observed(m=1.0))["m"] < 0.01


def test_unknown_latencies_and_missing_objectives_have_no_headroom_and_the_work_is_bounded() -> None:
    assert headrooms(spec("m"), Observed({}, {"m": 5.0}, {})) == {}
    assert headrooms(spec("m", slo_ms=0), observed(m=5.0)) == {}
    names = [f"m{number}" for number in range(MOST_PIPELINES + 3)]
    found = headrooms(spec(*names), observed(**{name: 1.0 + index for index, name in enumerate(names)}))
    assert list(found) == names[:2:-1]
