"""The policies that learn how large batches may be: `aimd` and `quantile`."""

import random

import pytest

from sluice.batcher.drivers.journal import JournalWriter, decode_spec, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import Limits, PolicyConfig
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, ReleaseReason
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady
from sluice.batcher.policies.aimd import AimdSettings, AimdSize
from sluice.batcher.policies.base import Choice, LearningPolicy
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.learned_size import LearnedSizePolicy
from sluice.batcher.policies.quantile import REFIT_BATCHES, QuantileSettings, QuantileSize
from sluice.batcher.policies.registry import decode_policy, select_policy
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import GAINING, MS, ONE, US, S, arrival, model, serving, spec_of
from tests.unit.batcher.policies.views import Waiting, WaitingQueue, idle

LEARNING = [AimdSettings(), QuantileSettings()]


def policy(settings: PolicyConfig) -> LearnedSizePolicy:
    made = select_policy(settings, Limits())
    assert isinstance(made, LearnedSizePolicy)
    return made


def grown(size: AimdSize, batches: int, took_ns: int = MS) -> list[int]:
    """The sizes after each of some full batches."""
    sizes = []
    for _ in range(batches):
        size.observe(size.rows, took_ns)
        sizes.append(size.rows)
    return sizes


def test_aimd_adds_rows_after_full_batches_within_the_budget() -> None:
    assert grown(AimdSize(AimdSettings(add=4)), 3) == [5, 9, 13]


def test_aimd_grows_by_batches_of_the_size_before_and_by_no_smaller_ones() -> None:
    size = AimdSize(AimdSettings(add=4))
    grown(size, 3)
    size.observe(8, MS)
    assert size.rows == 13
    size.observe(9, MS)
    assert size.rows == 17


def test_aimd_keeps_its_share_after_a_late_batch_and_stays_between_budget_and_target() -> None:
    size = AimdSize(AimdSettings(target_ms=20, budget=0.9, add=10))
    grown(size, 10)
    assert grown(size, 1, 19 * MS) == [101]
    assert grown(size, 1, 21 * MS) == [90]
    assert grown(size, 1, 18 * MS) == [100]


def test_aimd_does_not_step_back_twice_for_what_was_closed_before_the_first_time() -> None:
    size = AimdSize(AimdSettings(add=99))
    grown(size, 1)
    size.observe(100, 21 * MS)
    size.observe(100, 21 * MS)
    assert size.rows == 90


def test_aimd_steps_back_to_one_row_and_grows_again() -> None:
    size = AimdSize(AimdSettings())
    assert grown(size, 2, 30 * MS) == [1, 1]
    size.observe(8, 30 * MS)  # one request of eight rows, which is never split
    assert size.rows == 1
    size.observe(8, MS)
    assert size.rows == 2


def test_plain_aimd_is_late_once_a_cycle() -> None:
    size = AimdSize(AimdSettings(add=4, budget=1))
    took_ns = []
    for _ in range(1000):
        took_ns.append(840 * US + 32 * US * size.rows)
        size.observe(size.rows, took_ns[-1])
    assert sum(each > 20 * MS for each in took_ns[200:]) / 800 == pytest.approx(1 / 15.5, rel=0.1)


def test_quantile_reaches_the_size_whose_time_is_the_budget() -> None:
    size = QuantileSize(QuantileSettings(target_ms=20, budget=1))
    for _ in range(12 * REFIT_BATCHES):
        size.observe(size.rows, 840 * US + 32 * US * size.rows)
    assert size.rows in (597, 598)  # (20 - 0.84) / 0.032 = 598.75


def test_quantile_tries_one_more_row_where_the_time_of_one_is_mostly_fixed() -> None:
    size = QuantileSize(QuantileSettings(target_ms=9, budget=1))
    sizes = []
    for _ in range(3):
        for _ in range(REFIT_BATCHES):
            size.observe(size.rows, 5 * MS + (size.rows - 1) * MS)
        sizes.append(size.rows)
    assert sizes == [2, 4, 5]  # 4 ms and 1 ms a row


def test_quantile_at_most_doubles_what_it_has_seen() -> None:
    size = QuantileSize(QuantileSettings())
    sizes = []
    for _ in range(4):
        for _ in range(REFIT_BATCHES):
            size.observe(size.rows, 10 * US)
        sizes.append(size.rows)
    assert sizes == [2, 4, 8, 16]


def test_quantile_keeps_the_tail_of_noisy_batches_in_time() -> None:
    size, chance = QuantileSize(QuantileSettings(budget=1)), random.Random(7)
    took_ns = []
    for _ in range(2000):
        took_ns.append(int((840 + 32 * size.rows) * US * chance.lognormvariate(0, 0.05)))
        size.observe(size.rows, took_ns[-1])
    assert sum(each > 20 * MS for each in took_ns[500:]) / 1500 < 0.03
    assert size.rows > 400


def test_quantile_shrinks_when_batches_of_one_size_become_slow() -> None:
    size = QuantileSize(QuantileSettings(target_ms=10, budget=1))
    for _ in range(REFIT_BATCHES):
        size.observe(100, 40 * MS)
    assert size.rows == 25


@pytest.mark.parametrize("settings", LEARNING)
def test_each_partition_learns_by_itself(settings: PolicyConfig) -> None:
    learner = policy(settings)
    for _ in range(REFIT_BATCHES):
        learner.observe("slow", 1, 50 * MS)
        learner.observe("fast", learner.sizes().get("fast", 1), MS)
    assert learner.sizes()["slow"] == 1
    assert learner.sizes()["fast"] > 1


@pytest.mark.parametrize("settings", LEARNING)
def test_a_batch_closes_at_the_size_that_its_partition_has_learned(settings: PolicyConfig) -> None:
    learner = policy(settings)
    while learner.sizes().get("", 1) < 3:
        learner.observe("", learner.sizes().get("", 1), MS)
    most = learner.sizes()[""]
    few, many = WaitingQueue(Waiting(rows=most - 1)), WaitingQueue(*[Waiting()] * (most + 2))
    assert learner.choose(few, idle(ONE)) == Choice(most - 1, ReleaseReason.IDLE)
    assert learner.choose(many, idle(ONE)) == Choice(most, ReleaseReason.FULL)


@pytest.mark.parametrize("settings", [AimdSettings(add=3, max_delay_ms=2), QuantileSettings(max_delay_ms=2)])
def test_a_smaller_batch_waits_for_the_delay(settings: PolicyConfig) -> None:
    learner = policy(settings)
    while (most := learner.sizes().get("", 1)) < 4:
        learner.observe("", most, MS)
    queue, context = WaitingQueue(Waiting(enqueued_ns=MS)), idle(ONE)
    assert learner.choose(queue, context) == Choice(0, ReleaseReason.DELAY, 3 * MS, min(most, 8))
    assert learner.choose(queue, context._replace(now_ns=3 * MS)) == Choice(1, ReleaseReason.DELAY)


def test_a_batch_under_load_is_predicted_to_have_the_largest_size_that_a_partition_has_learned() -> None:
    learner, estimate = policy(AimdSettings(add=3)), idle(GAINING).estimate
    assert learner.full_rows(estimate) == 1
    learner.observe("fast", 1, MS)
    learner.observe("slow", 1, MS)
    assert learner.full_rows(estimate) == 4
    learner.observe("fast", 4, MS)
    assert learner.full_rows(estimate) == 7
    learner.observe("fast", 4, 30 * MS)  # down to 3, less than the other one has
    assert learner.full_rows(estimate) == 4
    for _ in range(9):
        learner.observe("fast", learner.sizes()["fast"], MS)
    assert learner.full_rows(estimate) == 8 == estimate.max_rows


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"name": "aimd", "add": 0}, "add: expected at least 1, got 0"),
        ({"name": "aimd", "backoff": 1.0}, "backoff: expected a share above 0 and below 1, got 1"),
        ({"name": "aimd", "target_ms": 0}, "target_ms: expected a finite number above 0, got 0"),
        ({"name": "aimd", "budget": 1.5}, "budget: expected a share above 0 and at most 1, got 1.5"),
        ({"name": "quantile", "quantile": 1.0}, "quantile: expected at least 0.5 and less than 1, got 1"),
        ({"name": "quantile", "max_delay_ms": -1}, "max_delay_ms: expected a finite number of at least 0, got -1"),
        ({"name": "quantile", "add": 4}, "add belongs to policy aimd, not to quantile"),
    ],
)
def test_a_setting_that_is_wrong_is_named(document: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_policy(PolicyConfig, document)


def test_policies_that_learn_nothing_are_not_asked_to() -> None:
    assert not isinstance(select_policy(DeadlineSettings(), Limits()), LearningPolicy)
    scheduler = Scheduler(spec_of([model("a:1", policy=AimdSettings()), model("b:1")]))
    assert list(scheduler.dispatcher.fleet.learners) == ["a:1"]


class SlowerService:
    """Batches take 1 ms, and a tenth of a millisecond a row; four times that on the second partition."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return (MS + 100 * US * batch.rows) * (4 if batch.partition == "cpu1" else 1)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return ()

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


@pytest.mark.parametrize("settings", [AimdSettings(target_ms=4), QuantileSettings(target_ms=4)])
def test_a_server_learns_a_size_for_each_partition_and_its_journal_replays(settings: PolicyConfig) -> None:
    limits = Limits(queue_requests=200)
    spec = spec_of([model("m:1", 64, settings)], partitions=("cpu0", "cpu1"), limits=limits)
    scheduler, lines = Scheduler(spec), list[bytes]()
    writer, largest = JournalWriter(lines.append, spec), {"cpu0": 0, "cpu1": 0}

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        writer.record(now_ns, event, decisions)
        for each in decisions:
            if isinstance(each, DispatchBatch):
                largest[each.partition] = max(largest[each.partition], each.rows)

    simulator = Simulator(scheduler, SlowerService(), observe)
    table = LatencyTable.from_ms({1: 1.1, 64: 7.4})
    for partition in ("cpu0", "cpu1"):
        simulator.at(0, PartitionReady(partition, {"m:1": table}))
    simulator.run((at, arrival(at, 100 * S)) for at in range(0, 200 * MS, 60 * US))
    sizes = scheduler.dispatcher.fleet.learners["m:1"].sizes()
    assert 24 <= sizes["cpu0"] <= 31  # 4 ms are 30 rows, 92 % of it 26
    assert sizes["cpu1"] == 1 == largest["cpu1"]  # even one row takes longer
    assert largest["cpu0"] <= 31
    assert decode_spec(lines[0]) == spec
    assert replay(lines) is None


def test_a_model_that_goes_takes_what_was_learned_with_it() -> None:
    scheduler = serving(spec_of([model("m:1", policy=AimdSettings())]), ONE)
    fleet = scheduler.dispatcher.fleet
    assert "m:1" in fleet.learners
    fleet.forget("m:1")
    assert not fleet.learners
