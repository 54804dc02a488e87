"""Overload: admitted requests are answered in time, and contending pipelines share the capacity by weight."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PipelineConfig, PolicyConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, Settlement
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import CERTAINTY, MS, S, cascade, chain, ensemble, model, single, spec_of

BY_DEADLINE = DeadlineSettings()
QUICK = LatencyTable.from_ms({1: 0.67, 2: 0.8, 4: 1.03, 8: 1.66, 16: 2.46, 32: 3.81, 64: 6.01})
SLOW = LatencyTable.from_ms({1: 2, 2: 2.6, 4: 3.8, 8: 6.5})
TABLES = {"quick:1": QUICK, "slow:1": SLOW, "other:1": QUICK}
RATE = 1_203
"""Rows a second of `slow:1` on one partition, in full batches with their dispatch overhead."""
WARM_NS = 500 * MS


class Machine:
    """Batches take the time of the tables, plus or minus a tenth; confidences are uniform."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def batch_ns(self, batch: DispatchBatch) -> int:
        return int(TABLES[batch.model].latency_ns(batch.rows) * self._random.uniform(0.9, 1.1))

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self._random.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


class Answers(msgspec.Struct):
    """Requests a second of one pipeline: offered, answered in time, and answered late."""

    offered: float
    in_time: float
    late: float


def simulate(
    spec: SchedulerSpec, loads: Mapping[str, tuple[float, int]], holds: Sequence[Sequence[str]], length_ns: int = 2 * S
) -> dict[str, Answers]:
    """Answers by pipeline after a warm-up, for Poisson arrivals by (requests a second, objective in ms)."""
    source = random.Random(1)
    events = []
    for name, (rate, slo_ms) in loads.items():
        now_ns = 1
        while (now_ns := now_ns + int(source.expovariate(rate) * S)) < length_ns:
            events.append((now_ns, name, slo_ms * MS))
    arrivals = [
        (now_ns, RequestArrived(number, name, 1, now_ns + slo_ns))
        for number, (now_ns, name, slo_ns) in enumerate(sorted(events))
    ]
    counts: dict[str, Counter[Outcome]] = {name: Counter() for name in loads}

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Settlement):
                arrived_ns, arrival = arrivals[decision.request]
                if arrived_ns >= WARM_NS:
                    counts[arrival.pipeline][decision.outcome] += 1

    scheduler = Scheduler(spec)
    simulator = Simulator(scheduler, Machine(), observe)
    for partition, models in zip(spec.partitions, holds, strict=True):
        simulator.at(0, PartitionReady(partition.name, {key: TABLES[key] for key in models}))
    simulator.run(arrivals)
    check_invariants(scheduler)
    measured_s = (length_ns - WARM_NS) / S
    return {
        name: Answers(
            count.total() / measured_s,
            count[Outcome.COMPLETED] / measured_s,
            count[Outcome.COMPLETED_LATE] / measured_s,
        )
        for name, count in counts.items()
    }


# -- shares by weight


def sharing(weight: float, policy: PolicyConfig = BY_DEADLINE, late: Late = Late.SERVE) -> SchedulerSpec:
    """Pipelines `one`, of weight 1, and `other` on one model."""
    pipelines = [single("slow:1", name="one"), single("slow:1", late, name="other", weight=weight)]
    return spec_of([model("slow:1", 8, policy)], pipelines)


@pytest.mark.parametrize("policy", [BY_DEADLINE, TimeoutConfig()])
@pytest.mark.parametrize("slo_ms", [60, 200])
@pytest.mark.parametrize("weight", [1, 3, 8])
def test_overloaded_pipelines_are_answered_by_weight(weight: int, slo_ms: int, policy: PolicyConfig) -> None:
    load = (2 * RATE, slo_ms)
    answers = simulate(sharing(weight, policy), {"one": load, "other": load}, [["slow:1"]], 5 * S)
    one, other = answers["one"], answers["other"]
    assert other.in_time / one.in_time == pytest.approx(weight, rel=0.1)
    assert one.in_time + other.in_time >= 0.95 * RATE
    assert one.late + other.late <= 0.01 * RATE


@pytest.mark.parametrize(("slo_ms", "other_slo_ms"), [(60, 60), (200, 200), (200, 60), (60, 200)])
@pytest.mark.parametrize("weight", [1, 8])
def test_a_far_overloaded_pipeline_gets_the_rest_and_harms_no_other(
    weight: int, slo_ms: int, other_slo_ms: int
) -> None:
    share = weight / (1 + weight)
    loads = {"one": (5 * RATE, slo_ms), "other": (0.3 * share * RATE, other_slo_ms)}
    answers = simulate(sharing(weight), loads, [["slow:1"]])
    one, other = answers["one"], answers["other"]
    assert other.in_time >= 0.99 * other.offered
    assert one.in_time + other.in_time >= 0.95 * RATE
    assert one.late <= 0.03 * one.in_time


def test_a_pipeline_within_its_share_is_served_where_few_batches_fit_its_deadline() -> None:
    loads = {"one": (5 * RATE, 20), "other": (0.15 * RATE, 20)}
    answers = simulate(sharing(1), loads, [["slow:1"]], 4 * S)
    assert answers["other"].in_time >= 0.99 * answers["other"].offered
    assert answers["one"].in_time >= 0.8 * RATE


def test_unused_shares_go_to_overloaded_pipelines_by_weight() -> None:
    pipelines = [single("slow:1", name=name, weight=weight) for name, weight in (("a", 1), ("b", 2), ("c", 1))]
    loads = {"a": (2 * RATE, 200), "b": (2 * RATE, 200), "c": (0.1 * RATE, 200)}
    answers = simulate(spec_of([model("slow:1", 8)], pipelines), loads, [["slow:1"]])
    assert answers["c"].in_time >= 0.99 * answers["c"].offered
    assert answers["a"].in_time == pytest.approx(0.3 * RATE, rel=0.1)
    assert answers["b"].in_time == pytest.approx(0.6 * RATE, rel=0.1)


def test_many_light_pipelines_leave_their_unused_shares_to_an_overloaded_one() -> None:
    names = [f"little{number}" for number in range(9)]
    pipelines = [single("slow:1", name=name) for name in ("much", *names)]
    loads = {"much": (5 * RATE, 200)} | dict.fromkeys(names, (0.03 * RATE, 200))
    answers = simulate(spec_of([model("slow:1", 8)], pipelines), loads, [["slow:1"]])
    assert all(answers[name].in_time >= 0.99 * answers[name].offered for name in names)
    assert answers["much"].in_time >= 0.7 * RATE


def test_with_a_hundredth_of_the_weight_it_still_gets_its_share() -> None:
    load = (2 * RATE, 200)
    answers = simulate(sharing(100), {"one": load, "other": load}, [["slow:1"]])
    assert answers["one"].in_time == pytest.approx(RATE / 101, rel=0.1)


def test_weights_refuse_no_request_below_the_capacity() -> None:
    loads = {"one": (0.6 * RATE, 60), "other": (0.3 * RATE, 60)}
    answers = simulate(sharing(8), loads, [["slow:1"]])
    assert [each.in_time for each in answers.values()] == [each.offered for each in answers.values()]


def test_beside_a_pipeline_that_evicts_no_more_is_admitted_than_there_is_time_for() -> None:
    loads = {"one": (5 * RATE, 200), "other": (0.2 * RATE, 200)}
    answers = simulate(sharing(1, late=Late.EVICT), loads, [["slow:1"]], S)
    assert answers["other"].in_time >= 0.99 * answers["other"].offered
    assert answers["one"].in_time >= 0.75 * RATE
    assert answers["one"].late <= 0.01 * answers["one"].in_time


@pytest.mark.parametrize("weight", [1, 3])
def test_overloaded_pipelines_that_evict_are_served_by_weight(weight: int) -> None:
    pipelines = [single("slow:1", Late.EVICT, name="one"), single("slow:1", Late.EVICT, name="other", weight=weight)]
    load = (2 * RATE, 100)
    answers = simulate(spec_of([model("slow:1", 8)], pipelines), {"one": load, "other": load}, [["slow:1"]], S)
    one, other = answers["one"], answers["other"]
    assert other.in_time / one.in_time == pytest.approx(weight, rel=0.1)
    assert one.in_time + other.in_time >= 0.95 * RATE
    assert one.late + other.late <= 0.01 * RATE  # batches take up to a tenth longer than expected


@pytest.mark.parametrize(("slo_ms", "other_slo_ms"), [(100, 100), (200, 60)])
@pytest.mark.parametrize("late", Late)
def test_an_overloaded_pipeline_that_evicts_starves_no_other(late: Late, slo_ms: int, other_slo_ms: int) -> None:
    pipelines = [single("slow:1", Late.EVICT, name="one"), single("slow:1", late, name="other")]
    loads = {"one": (5 * RATE, slo_ms), "other": (0.15 * RATE, other_slo_ms)}
    answers = simulate(spec_of([model("slow:1", 8)], pipelines), loads, [["slow:1"]], S)
    one, other = answers["one"], answers["other"]
    assert other.in_time >= 0.7 * other.offered
    assert one.in_time >= 0.8 * RATE
    assert one.late <= 0.01 * RATE


# -- stages on partitions of their own

MODELS = (model("quick:1", 64, confidences=(CERTAINTY,)), model("slow:1", 8), model("other:1", 64))
PIPELINES = {
    "first stage": (chain("slow:1", "quick:1", name="p"), RATE),
    "last stage": (chain("quick:1", "slow:1", name="p"), RATE),
    "escalation": (cascade("quick:1", "slow:1", name="p", below=0.3), RATE / 0.3),
    "branch": (ensemble("quick:1", "slow:1", name="p"), RATE),
}


@pytest.mark.parametrize("overload", [1.5, 3])
@pytest.mark.parametrize("bottleneck", PIPELINES)
def test_an_overloaded_partition_of_any_stage_completes_its_capacity_in_time(bottleneck: str, overload: float) -> None:
    pipeline, rate = PIPELINES[bottleneck]
    spec = spec_of(MODELS, [pipeline], partitions=("cpu0", "cpu1"))
    answers = simulate(spec, {"p": (overload * rate, 100)}, [["quick:1", "other:1"], ["slow:1"]])["p"]
    assert answers.in_time >= 0.9 * rate
    assert answers.late <= 0.01 * answers.in_time


@pytest.mark.parametrize("weight", [1, 3])
def test_pipelines_that_meet_in_their_last_stage_share_it_by_weight(weight: float) -> None:
    other = msgspec.structs.replace(chain("other:1", "slow:1", name="other"), weight=weight)
    pipelines: list[PipelineConfig] = [chain("quick:1", "slow:1", name="one"), other]
    spec = spec_of(MODELS, pipelines, partitions=("cpu0", "cpu1"))
    load = (2 * RATE, 100)
    answers = simulate(spec, {"one": load, "other": load}, [["quick:1", "other:1"], ["slow:1"]])
    assert answers["other"].in_time / answers["one"].in_time == pytest.approx(weight, rel=0.1)
    assert sum(each.in_time for each in answers.values()) >= 0.9 * RATE


def test_a_stage_that_few_rows_reach_refuses_no_request() -> None:
    pipelines = [cascade("quick:1", "slow:1", name="rare", below=0.01), single("slow:1", name="much")]
    spec = spec_of(MODELS, pipelines, partitions=("cpu0", "cpu1"))
    loads = {"rare": (2_000.0, 100), "much": (3.0 * RATE, 100)}
    answers = simulate(spec, loads, [["quick:1", "other:1"], ["slow:1"]])
    assert answers["rare"].in_time >= 0.98 * answers["rare"].offered
