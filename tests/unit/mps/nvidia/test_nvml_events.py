"""Fatal errors of GPUs, reported by a fake of the driver's library under the real pynvml."""

import asyncio

import pynvml
import pytest

from sluice.models.errors import ControlFailed
from sluice.mps.mig.apply import MigControl
from sluice.mps.mig.geometry import GEOMETRIES
from sluice.mps.mig.placements import parse_placement
from sluice.mps.nvidia.device_watch import DeviceWatch
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.nvidia.nvml_events import DeviceFailure
from sluice.mps.partitions.partition import MpsPartition
from sluice.mps.supervisor.quarantine import Quarantined, QuarantineSettings
from sluice.mps.supervisor.recovery import Recovery
from sluice.mps.supervisor.worker_slot import WorkerSlot
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.gateway.processes import until
from tests.support.gpu.fake_nvml import FakeGpu, FakeNvml, installed

XID, ECC = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError
GPU0, GPU1 = (f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in range(2))
H100 = GEOMETRIES["H100-80"]


def with_instances(control: MigControl) -> list[str]:
    return [control.create(GPU0, parse_placement(H100, text)) for text in ("3g@4", "1g@0")]


@pytest.mark.parametrize(
    ("type", "data", "reason"), [(XID, 79, "Xid 79"), (ECC, 0, "an uncorrectable memory error (ECC)")]
)
def test_a_fatal_error_takes_the_gpu_and_all_its_instances_along(type: int, data: int, reason: str) -> None:
    first = FakeGpu(mig=True)
    with installed(FakeNvml(first, FakeGpu())) as fake, open_nvml() as nvml:
        migs = with_instances(nvml)
        events = nvml.events()
        fake.tell(first, type, data)
        assert events.wait(0.01) == DeviceFailure(frozenset({GPU0, *migs}), f"{GPU0} has {reason}")
        assert events.wait(0.01) is None
        events.close()


def test_an_error_of_one_instance_leaves_the_others_alone() -> None:
    first = FakeGpu(mig=True)
    with installed(FakeNvml(first)) as fake, open_nvml() as nvml:
        _, one = with_instances(nvml)
        events = nvml.events()
        fake.tell(first, XID, 95, first.instances[1].id)
        assert events.wait(0.01) == DeviceFailure(frozenset({one}), f"{one} has Xid 95")
        events.close()


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 94])
def test_an_application_s_own_error_is_left_to_it(xid: int) -> None:
    gpu = FakeGpu()
    with installed(FakeNvml(gpu)) as fake, open_nvml() as nvml:
        events = nvml.events()
        fake.tell(gpu, XID, xid)
        assert events.wait(0.01) is None
        events.close()


def test_a_gpu_that_has_fallen_off_the_bus_is_reported_once_and_the_other_is_watched_on() -> None:
    first, second = FakeGpu(), FakeGpu()
    with installed(FakeNvml(first, second)) as fake, open_nvml() as nvml:
        events = nvml.events()
        assert list(events.watched) == [GPU0, GPU1]
        first.lost = True
        assert events.wait(0.01) == DeviceFailure(frozenset({GPU0}), f"{GPU0} has fallen off the bus")
        assert list(events.watched) == [GPU1]
        assert events.wait(0.01) is None
        fake.tell(second, XID, 48)
        assert events.wait(0.01) == DeviceFailure(frozenset({GPU1}), f"{GPU1} has Xid 48")
        events.close()


def test_a_gpu_that_is_lost_already_leaves_the_others_watched() -> None:
    first, second = FakeGpu(), FakeGpu()
    with installed(FakeNvml(first, second)), open_nvml() as control:
        first.lost = True
        assert list(control.events().watched) == [second.uuid]


def test_the_loop_hears_only_of_the_devices_that_are_watched() -> None:
    first, second = FakeGpu(), FakeGpu()

    async def main(fake: FakeNvml) -> list[tuple[frozenset[str], str]]:
        reported: asyncio.Queue[tuple[frozenset[str], str]] = asyncio.Queue()
        watch = DeviceWatch([GPU1], lambda devices, reason: reported.put_nowait((devices, reason)))
        watch.start()
        await asyncio.to_thread(until, lambda: fake.watched == {GPU0, GPU1})
        fake.tell(first, XID, 79)
        fake.tell(second, XID, 79)
        async with asyncio.timeout(60):
            found = [await reported.get()]
        await watch.close()
        assert reported.empty()
        return found

    with installed(FakeNvml(first, second)) as fake:
        assert asyncio.run(main(fake)) == [(frozenset({GPU1}), f"{GPU1} has Xid 79")]


def test_without_a_driver_the_log_says_that_nothing_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watch = DeviceWatch([GPU0], lambda devices, reason: None)
        watch.start()
        await watch.close()

    with installed(FakeNvml()) as fake:
        fake.fail["nvmlInitWithFlags"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        asyncio.run(main())
    assert "devices are not watched for errors: no NVIDIA driver answers on this machine" in caplog.text


def test_a_driver_that_fails_while_it_is_watched_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for error in (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST):
        with installed(FakeNvml(FakeGpu())) as fake, open_nvml() as nvml:
            events = nvml.events()
            fake.fail["nvmlEventSetWait_v2"] = error
            with pytest.raises(ControlFailed, match="the driver"):
                events.wait(0.01)
            events.close()

    async def main(fake: FakeNvml) -> None:
        watch = DeviceWatch([GPU0], lambda devices, reason: None)
        watch.start()
        await asyncio.to_thread(until, lambda: fake.watched == {GPU0})
        fake.fail["nvmlEventSetWait_v2"] = pynvml.NVML_ERROR_UNKNOWN
        await asyncio.to_thread(until, lambda: "devices are not watched for errors" in caplog.text)
        await watch.close()

    with installed(FakeNvml(FakeGpu())) as fake:
        asyncio.run(main(fake))


def test_the_partitions_of_a_device_that_is_lost_are_left_alone_with_the_reason() -> None:
    gpu = FakeGpu()

    async def main(fake: FakeNvml) -> None:
        slot = WorkerSlot(WorkerSpec(MpsPartition("share", GPU0, 50), (), 4096), 120, lambda *_: None)
        recovery = Recovery([slot], {"share": slot}, lambda slot: None, QuarantineSettings(), {})
        recovery.start()
        await asyncio.to_thread(until, lambda: fake.watched == {GPU0})
        fake.tell(gpu, XID, 79)
        await asyncio.to_thread(until, lambda: bool(recovery.quarantined))
        assert recovery.quarantined == {"share": Quarantined(60, f"{GPU0} has Xid 79")}
        await recovery.close()
        slot.cancel_timer()

    with installed(FakeNvml(gpu)) as fake:
        asyncio.run(main(fake))
