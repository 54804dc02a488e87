from sluice.batcher.interface.config import PriorityLevels
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.settings.scheduling import ModelSettings, ServingSettings
from sluice.models.dynamic_batching import DynamicBatching, QueuePolicy
from sluice.models.spec import ModelSpec

BATCHING = DynamicBatching(preferred=(4, 8), max_queue_delay_us=250)
PLAIN = ModelSpec("plain", 1, (), (), 8)
ASKING = ModelSpec("asking", 2, (), (), 8, dynamic_batching=BATCHING)


def test_a_model_is_batched_as_its_configuration_asks_unless_the_settings_name_another_policy() -> None:
    timeout = TimeoutConfig((4, 8), 250_000)
    assert ServingSettings().policies([PLAIN, ASKING]) == {"asking:2": timeout}
    settings = ServingSettings(models={"asking": ModelSettings(policy=NoBatchingSettings())})
    assert settings.policies([PLAIN, ASKING]) == {"asking:2": NoBatchingSettings()}


def test_levels_and_bounds_of_queues_reach_the_scheduler() -> None:
    bounded, usual = QueuePolicy(max_queue_size=3), QueuePolicy(default_timeout_us=7)
    batching = DynamicBatching(
        priority_levels=2, default_priority_level=1, default_queue_policy=usual, priority_queue_policy={2: bounded}
    )
    policies = ServingSettings().policies([ModelSpec("m", 1, (), (), 8, dynamic_batching=batching)])
    levels = PriorityLevels(2, 1, usual, {2: bounded})
    assert policies == {"m:1": TimeoutConfig(levels=levels)}
    ordered = ModelSpec("m", 1, (), (), 8, dynamic_batching=DynamicBatching(preserve_ordering=True))
    assert ServingSettings().policies([ordered]) == {"m:1": TimeoutConfig(preserve_ordering=True)}
