import msgspec
import pytest

from sluice.batcher.interface.config import PriorityLevels
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule, InstanceSetting
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.static import StaticSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.settings.scheduling import ModelSettings, ServingSettings, convert_settings
from sluice.batcher.settings.spec_builder import build_spec
from sluice.models.dynamic_batching import DynamicBatching, QueuePolicy
from sluice.models.errors import ConfigError
from sluice.models.sequence_batching import SequenceBatching
from sluice.models.spec import ModelSpec

BATCHING = DynamicBatching(preferred=(4, 8), max_queue_delay_us=250)
PLAIN = ModelSpec("plain", 1, (), (), 8)
ASKING = ModelSpec("asking", 2, (), (), 8, dynamic_batching=BATCHING)


def test_a_model_is_batched_as_its_configuration_asks_unless_the_settings_name_another_policy() -> None:
    timeout = TimeoutConfig((4, 8), 250_000)
    assert ServingSettings().policies([PLAIN, ASKING]) == {"asking:2": timeout}
    settings = ServingSettings(models={"asking": ModelSettings(policy=NoBatchingSettings())})
    assert settings.policies([PLAIN, ASKING]) == {"asking:2": NoBatchingSettings()}


def test_batches_are_padded_to_no_more_rows_than_a_model_takes() -> None:
    sizes = StaticSettings(max_batch_size=16, allowed_batch_sizes=(4, 16))
    alone = ModelSpec("alone", 1, (), (), 0)
    assert ServingSettings(policy=sizes).policies([alone]) == {}, "a single row is not padded"
    message = r"^policy: expected sizes of batches up to 8, the max_batch_size of model plain:1, got \[4, 16\]$"
    with pytest.raises(ConfigError, match=message):
        ServingSettings(policy=sizes).policies([alone, PLAIN])
    with pytest.raises(ConfigError, match="the max_batch_size of model plain:1, got"):
        ServingSettings(policy=sizes).policies([msgspec.structs.replace(PLAIN, revision=3)])
    own = ServingSettings(policy=sizes, models={"plain": ModelSettings(policy=NoBatchingSettings())})
    assert own.policies([PLAIN, ASKING]).keys() == {"plain:1", "asking:2"}
    with pytest.raises(ConfigError, match=r"^models\.asking\.policy: expected sizes .* of model asking:2"):
        ServingSettings(models={"asking": ModelSettings(policy=sizes)}).policies([PLAIN, ASKING])


def test_a_model_that_has_sequences_has_the_policy_of_its_configuration_and_no_other() -> None:
    model = ModelSpec("m", 1, (), (), 8, sequence_batching=SequenceBatching())
    assert ServingSettings(policy=NoBatchingSettings()).policies([model]) == {"m:1": TimeoutConfig()}
    with pytest.raises(
        ConfigError, match=r"^models\.m\.policy: expected none for a model that has sequences, got static$"
    ):
        ServingSettings(models={"m": ModelSettings(policy=StaticSettings())}).policies([model])


def test_a_batch_policy_is_written_as_its_name_or_with_settings() -> None:
    settings = convert_settings({"policy": "static", "models": {"m": {"policy": "none"}}}, ServingSettings, "f")
    assert (settings.policy, settings.models["m"].policy) == (StaticSettings(), NoBatchingSettings())
    with pytest.raises(ConfigError, match=r"f: policy: name: expected one of aimd, .*, got 'statik'.*'static'"):
        convert_settings({"policy": "statik"}, ServingSettings, "f")
    with pytest.raises(ConfigError, match=r"f: policy: Expected .* the name of a policy or its settings, got `int`"):
        convert_settings({"policy": 3}, ServingSettings, "f")


def test_models_have_their_own_instance_policy_or_that_of_the_server() -> None:
    exclusive, srtf = InstanceConfig(InstanceRule.EXCLUSIVE, steal_at=2.0), InstanceConfig(InstanceRule.SRTF)
    assert ServingSettings().instance_configs([PLAIN, ASKING]) == {}
    settings = ServingSettings(instances=exclusive, models={"asking": ModelSettings(instances=InstanceRule.SRTF)})
    assert settings.instance_configs([PLAIN, ASKING]) == {"plain:1": exclusive, "asking:2": srtf}
    settings = ServingSettings(instances=exclusive, models={"asking": ModelSettings(instances=InstanceRule.LOCALITY)})
    assert settings.instance_configs([PLAIN, ASKING]) == {"plain:1": exclusive}
    spec = build_spec([PLAIN, ASKING], [], [], instances=settings.instance_configs([PLAIN, ASKING]))
    assert [each.instances for each in spec.models] == [exclusive, None]


def test_a_model_that_answers_in_order_has_no_instance_policy() -> None:
    ordered = ModelSpec("m", 1, (), (), 8, dynamic_batching=DynamicBatching(preserve_ordering=True))
    assert ServingSettings(instances=InstanceRule.BALANCE).instance_configs([ordered]) == {}
    settings = ServingSettings(models={"m": ModelSettings(instances=InstanceRule.BALANCE)})
    problem = "models.m.instances: expected locality for a model that is answered in order, got balance"
    with pytest.raises(ConfigError, match=problem):
        settings.instance_configs([ordered])


@pytest.mark.parametrize(
    ("written", "config"),
    [
        ("srtf", InstanceRule.SRTF),
        ({"name": "exclusive", "steal_at": 2}, InstanceConfig(InstanceRule.EXCLUSIVE, steal_at=2.0)),
    ],
)
def test_an_instance_policy_is_written_as_a_name_or_with_settings(written: object, config: InstanceSetting) -> None:
    assert convert_settings({"instances": written}, ServingSettings, "server.yaml").instances == config


def test_an_unknown_instance_policy_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"server.yaml: models.m.instances: .*'fifo'"):
        convert_settings({"models": {"m": {"instances": "fifo"}}}, ServingSettings, "server.yaml")


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
