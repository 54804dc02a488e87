"""The models that a server begins with where there is no room for all of them."""

import msgspec
import pytest

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.settings.residency import LoadingMode, ResidencySettings
from sluice.gateway.deployment.initial_residency import initial_residency
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.models.errors import BackendUnavailable
from sluice.models.pipelines.check import single_model
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.gateway.inventory import PlayedInventory
from tests.support.scheduling.builders import model, spec_of


def spec(memory: int, **models: dict[str, object]) -> SchedulerSpec:
    """Models of one byte each, except those that are given."""
    configs = [
        msgspec.structs.replace(model(f"{name}:1"), **{"memory_bytes": 1, **given}) for name, given in models.items()
    ]
    return spec_of(configs, partitions=[PartitionConfig("only", "cpu1", memory_bytes=memory)])


def registry(*names: str, inventory: PlayedInventory | None = None) -> ModelRegistry:
    tensor = TensorSpec("x", DataType.FP32, (4,))
    pipelines = [single_model(ModelSpec(name, 1, (tensor,), (tensor,), 4)) for name in names]
    return ModelRegistry("1", pipelines, [], inventory or PlayedInventory("only"))


@pytest.mark.parametrize(
    ("mode", "memory", "loading"),
    [
        (LoadingMode.AUTO, 2, Loading.PLAN),
        (LoadingMode.AUTO, 1, Loading.DEMAND),
        (LoadingMode.AUTO, 0, Loading.PLAN),
        (LoadingMode.PLAN, 1, Loading.PLAN),
        (LoadingMode.DEMAND, 2, Loading.DEMAND),
        (LoadingMode.DEMAND, 0, Loading.PLAN),
    ],
)
def test_models_are_loaded_on_demand_where_there_is_no_room_for_all(
    mode: LoadingMode, memory: int, loading: Loading
) -> None:
    begin = initial_residency(spec(memory, m={}, n={}), ResidencySettings(mode))
    assert begin.spec.residency.loading is loading


def test_pinned_models_come_first_and_then_those_of_a_high_priority() -> None:
    begin = initial_residency(
        spec(2, a={}, b={}, c={"priority": 3}, d={"priority": 1, "pinned": True}), ResidencySettings()
    )
    assert begin.residency == {"only": ("c:1", "d:1")}
    assert begin.unplaced == ("a:1", "b:1")


def test_pinned_models_leave_room_for_the_largest_and_it_is_said_which_never_get_any(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = spec(0, logreg={"memory_bytes": 27, "pinned": True}, rf={"memory_bytes": 77}, mlp={"memory_bytes": 50})
    partitions = (PartitionConfig("a", "cpu1", memory_bytes=90), PartitionConfig("b", "cpu1", memory_bytes=60))
    begin = initial_residency(msgspec.structs.replace(given, partitions=partitions), ResidencySettings())
    assert "logreg:1" in begin.residency["b"]
    begin.announce(registry("logreg", "rf", "mlp"))
    assert "never" not in caplog.text
    begin = initial_residency(msgspec.structs.replace(given, partitions=partitions[:1]), ResidencySettings())
    begin.announce(registry("logreg", "rf", "mlp"))
    (record,) = [each for each in caplog.records if "never" in each.message]
    assert record.levelname == "WARNING"
    assert "rf:1" in str(record.__dict__)


def test_a_model_that_is_loaded_on_demand_is_ready_and_one_that_fits_nowhere_is_not_served() -> None:
    begin = initial_residency(spec(2, a={}, b={}, c={}, big={"memory_bytes": 3}), ResidencySettings())
    inventory = PlayedInventory("only")
    known = registry("a", "b", "c", "big", inventory=inventory)
    begin.announce(known)
    inventory.partition_ready("only", begin.residency["only"], {})
    assert begin.unplaced == ("big:1", "c:1")
    assert known.ready("c", "")
    inventory.model_unloaded("only", "a:1")
    assert known.ready("a", "")
    with pytest.raises(BackendUnavailable, match="no partition has room for"):
        known.pipeline("big", "")
    inventory.partition_lost("only")
    assert not known.ready("c", "")
