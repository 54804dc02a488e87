from batcher.config import PolicyConfig, PolicyName
from batcher.settings import ModelSettings, PolicySettings, ServingSettings
from models.dynamic_batching import DynamicBatching
from models.spec import ModelSpec

BATCHING = DynamicBatching(preferred=(4, 8), max_queue_delay_us=250)
PLAIN = ModelSpec("plain", 1, (), (), 8)
ASKING = ModelSpec("asking", 2, (), (), 8, dynamic_batching=BATCHING)


def test_a_model_is_batched_as_its_configuration_asks_unless_the_settings_name_another_policy() -> None:
    timeout = PolicyConfig(PolicyName.TIMEOUT, (4, 8), 250_000)
    assert ServingSettings().policies([PLAIN, ASKING]) == {"asking:2": timeout}
    settings = ServingSettings(models={"asking": ModelSettings(policy=PolicySettings(PolicyName.NONE))})
    assert settings.policies([PLAIN, ASKING]) == {"asking:2": PolicyConfig(PolicyName.NONE)}
