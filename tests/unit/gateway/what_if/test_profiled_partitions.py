"""Which partitions models are measured on."""

import pytest

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.what_if.profiled_partitions import profiled_partitions
from sluice.models.errors import ConfigError, PartitionError
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition

GPU, MIG = "GPU-74d43ed3-cdf7-e667-3644-0000000000fe", "MIG-74d43ed3-cdf7-e667-3644-0000000000fd"
CORE = CpuPartition("core", available_cores()[:1], hard_memory_mb=512)
SLICE = MigPartition("slice", MIG, "1g.10gb")
SMALL, LARGE = (MpsPartition(name, GPU, 30, memory_mb=memory) for name, memory in (("small", 1000), ("large", 9000)))


def chosen(text: str | None, *partitions: Partition) -> list[Partition]:
    return profiled_partitions(text, ServerConfig(partitions=partitions))[0]


def test_one_of_every_kind_is_taken_that_with_the_most_memory() -> None:
    assert chosen(None, CORE, SLICE, SMALL, LARGE) == [CORE, SLICE, LARGE]
    assert profiled_partitions(None, ServerConfig(partitions=(SMALL, LARGE)))[1] == (SMALL, LARGE)


def test_kinds_of_the_configuration_are_its_own_partitions() -> None:
    assert chosen("mps-30,mig-1g.10gb,cpu1", CORE, SLICE, SMALL, LARGE) == [LARGE, SLICE, CORE]
    (other,) = chosen("cpu1/x3", CORE)
    assert other == CpuPartition("cpu1/x3", available_cores()[:1], 3)


def test_what_cannot_be_measured_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"mps-20 cannot be measured here, .* the configuration mig-1g\.10gb, mps-30"):
        chosen("mps-20", CORE, SLICE, SMALL)
    with pytest.raises(ConfigError, match=r"mps-20 cannot be measured here, .*; GPUs need --config FILE"):
        profiled_partitions("mps-20", ServerConfig())
    with pytest.raises(PartitionError, match=f"core {available_cores()[0]} already belongs to partition core"):
        chosen(None, CORE, CpuPartition("other", CORE.cores))
