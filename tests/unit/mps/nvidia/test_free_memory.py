import pytest

from sluice.models.errors import InfeasibleLayout
from sluice.mps.mig.placements import parse_placement
from sluice.mps.nvidia import free_memory
from sluice.mps.nvidia.free_memory import free_capacity
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.capacity_check import HOST, FreeCapacity, check_capacity
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition, ShareMode
from tests.support.gpu.fake_nvml import FakeGpu, FakeNvml, installed

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "memory_limit_bytes", lambda: 4096 * MIB)


def test_a_gpu_has_free_what_no_process_holds() -> None:
    gpu = FakeGpu()
    with installed(FakeNvml(gpu)):
        total = 81_152  # as the driver tells it for a whole H100
        gpu.used_mib = total - 30_000
        partitions: list[Partition] = [CpuPartition("c", (0,)), MpsPartition("a", gpu.uuid, 50, 20_000)]
        assert free_capacity(partitions) == {HOST: FreeCapacity(100, 4096), gpu.uuid: FreeCapacity(100, 30_000)}
        more = [*partitions, MpsPartition("b", gpu.uuid, 50, 20_000)]
        with pytest.raises(InfeasibleLayout, match=r"40000 MiB of memory are requested \(.*\), 30000 MiB are free"):
            check_capacity(more, free_capacity(more))


def test_of_a_mig_device_its_own_memory_counts() -> None:
    gpu = FakeGpu(mig=True)
    with installed(FakeNvml(gpu)), open_nvml() as nvml:
        uuid = nvml.create(gpu.uuid, parse_placement(gpu.geometry, "3g@4"))
        gpu.compute(parse_placement(gpu.geometry, "3g@4")).used_mib = 448
        sharing = [MpsPartition(name, uuid, 50, 20_000, profile="3g.40gb") for name in ("a", "b")]
        assert free_capacity(sharing)[uuid] == FreeCapacity(100, 40_000)
        check_capacity(sharing, free_capacity(sharing))
        with pytest.raises(
            InfeasibleLayout, match=f"^{uuid}: 40001 MiB of memory are requested .*, 40000 MiB are free$"
        ):
            check_capacity([*sharing, MpsPartition("c", uuid, 1, 1, ShareMode.UNCAPPED)], free_capacity(sharing))


def test_a_device_that_is_not_there_takes_nothing_from_what_is_known_of_others() -> None:
    gpu = FakeGpu()
    with installed(FakeNvml(gpu)):
        gpu.used_mib = 1152
        partitions = [MpsPartition("a", gpu.uuid, 50, 20_000), MpsPartition("b", "GPU-0", 50, 20_000)]
        assert free_capacity(partitions) == {HOST: FreeCapacity(100, 4096), gpu.uuid: FreeCapacity(100, 80_000)}


def test_without_a_driver_the_memory_of_a_gpu_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.fail["nvmlInitWithFlags"] = 12
    monkeypatch.setattr("pynvml.nvmlLib", fake)
    monkeypatch.setattr("pynvml._nvmlGetFunctionPointer_cache", {})
    assert free_capacity([MpsPartition("a", "GPU-0", 50, 20_000)]) == {HOST: FreeCapacity(100, 4096)}
