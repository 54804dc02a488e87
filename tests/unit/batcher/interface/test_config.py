"""Facts that follow from the configuration of a model, a level of priority or a policy."""

import pytest

from sluice.batcher.interface.config import PolicyConfig, PriorityLevels, ScheduledModel
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Footprint
from sluice.models.dynamic_batching import QueuePolicy

LEVELS = PriorityLevels(count=3, default=2, policies={1: QueuePolicy(max_queue_size=5)})


@pytest.mark.parametrize(("priority", "level"), [(0, 2), (1, 1), (3, 3), (4, 2)])
def test_a_priority_without_a_level_has_the_default_one(priority: int, level: int) -> None:
    assert LEVELS.level_of(priority) == level
    assert PriorityLevels().level_of(priority) == 0


def test_a_level_without_a_policy_has_the_default_one() -> None:
    assert LEVELS.policy_of(1) == QueuePolicy(max_queue_size=5)
    assert LEVELS.policy_of(2) == QueuePolicy()


def test_a_policy_combines_requests_at_once_unless_it_says_otherwise() -> None:
    policy = PolicyConfig()
    assert (policy.combines, policy.defers, policy.longest_wait_ns(100.0)) == (True, False, 0)


def test_the_memory_of_a_model_is_profiled_or_measured_or_configured_in_this_order() -> None:
    known = ScheduledModel(
        "m:1",
        4,
        PolicyConfig(),
        memory_bytes=10,
        footprints={"gpu": Footprint(100, 5)},
        measured_bytes={"gpu": 7, "cpu1": 30},
    )
    assert [known.memory_on(kind) for kind in ("gpu", "cpu1", "cpu2")] == [120, 30, 10]
    assert known.most_bytes == 30


def test_only_completed_requests_are_answered() -> None:
    assert [outcome for outcome in Outcome if outcome.answered] == [Outcome.COMPLETED, Outcome.COMPLETED_LATE]
