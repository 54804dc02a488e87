"""Readings of GPUs through a fake driver below the real pynvml."""

import pynvml
import pytest

from sluice.mps.mig.placements import parse_placement
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.nvidia.readings import GpuReading, gpu_readings
from tests.support.gpu.fake_nvml import FakeGpu, FakeNvml, installed

MIB = 1 << 20


def test_gpus_and_their_instances_have_the_figures_that_the_driver_reports() -> None:
    whole, cut, lost = FakeGpu(), FakeGpu(mig=True), FakeGpu()
    whole.used_mib, lost.lost = 1024, True
    whole.meters = {"gpu": 25, "memory": 5, "PowerUsage": 310_500, "EnforcedPowerLimit": 700_000}
    whole.meters["TotalEnergyConsumption"] = 5_000_250
    with installed(FakeNvml(whole, cut, lost)):
        with open_nvml() as nvml:
            uuid = nvml.create(cut.uuid, parse_placement(cut.geometry, "1g.10gb@0"))
        found = gpu_readings()
    assert found is not None
    assert [each.uuid for each in found] == [whole.uuid, cut.uuid, uuid]
    total = found[0].memory_total_bytes
    assert found[0] == GpuReading(whole.uuid, 0.25, total, 1024 * MIB, 310.5, 700.0, 5000.25)
    assert found[1][1::3] == (None, None)  # neither use nor power
    assert found[2].memory_used_bytes == 0


def test_without_a_driver_there_are_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert gpu_readings() is None
