"""Where there is no room for all models, the log and the registry say which of them wait, and why."""

import msgspec
import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.settings.initial_residency import initial_residency
from sluice.batcher.settings.residency import ResidencySettings
from sluice.gateway.deployment.placement_notes import note_initial
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.models.errors import BackendUnavailable
from sluice.models.pipelines.check import single_model
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.gateway.inventory import PlayedInventory
from tests.unit.batcher.settings.initial_models import spec


def registry(*names: str, inventory: PlayedInventory | None = None) -> ModelRegistry:
    tensor = TensorSpec("x", DataType.FP32, (4,))
    pipelines = [single_model(ModelSpec(name, 1, (tensor,), (tensor,), 4)) for name in names]
    return ModelRegistry("1", pipelines, [], inventory or PlayedInventory("only"))


def test_models_that_never_get_room_beside_the_pinned_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = spec(0, logreg={"memory_bytes": 27, "pinned": True}, rf={"memory_bytes": 77}, mlp={"memory_bytes": 50})
    partitions = (PartitionConfig("a", "cpu1", memory_bytes=90), PartitionConfig("b", "cpu1", memory_bytes=60))
    begin = initial_residency(msgspec.structs.replace(given, partitions=partitions), ResidencySettings())
    note_initial(begin, registry("logreg", "rf", "mlp"))
    assert "never" not in caplog.text
    begin = initial_residency(msgspec.structs.replace(given, partitions=partitions[:1]), ResidencySettings())
    note_initial(begin, registry("logreg", "rf", "mlp"))
    (record,) = [each for each in caplog.records if "never" in each.message]
    assert record.levelname == "WARNING"
    assert "rf:1" in str(record.__dict__)


def test_a_model_that_is_loaded_on_demand_is_ready_and_one_that_fits_nowhere_is_not_served() -> None:
    begin = initial_residency(spec(2, a={}, b={}, c={}, big={"memory_bytes": 3}), ResidencySettings())
    inventory = PlayedInventory("only")
    known = registry("a", "b", "c", "big", inventory=inventory)
    note_initial(begin, known)
    inventory.partition_ready("only", begin.residency["only"], {})
    assert begin.unplaced == ("big:1", "c:1")
    assert known.ready("c", "")
    inventory.model_unloaded("only", "a:1")
    assert known.ready("a", "")
    with pytest.raises(BackendUnavailable, match="no partition has room for"):
        known.pipeline("big", "")
    inventory.partition_lost("only")
    assert not known.ready("c", "")
