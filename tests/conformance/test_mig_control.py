"""The contract of a MigControl: over the real pynvml on fakes, and where there is a GPU on it, without changing it."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluice.models.errors import ControlFailed
from sluice.mps.mig.apply import MigControl
from sluice.mps.mig.geometry import GEOMETRIES, geometry_of
from sluice.mps.mig.placements import layout_problem, parse_placement
from sluice.mps.nvidia.nvml import Nvml, open_nvml
from tests.support.gpu.fake_nvml import FakeCompute, FakeGpu, FakeNvml, installed

H100 = GEOMETRIES["H100-80"]
HARDWARE = ["hardware"] if Path("/dev/nvidia0").exists() else []


@pytest.fixture(params=["A30", "A100-40", "H100-80", *HARDWARE])
def any_control(request: pytest.FixtureRequest) -> Iterator[MigControl]:
    if request.param == "hardware":
        with open_nvml() as control:
            yield control
    else:
        with installed(FakeNvml(FakeGpu(request.param), FakeGpu(request.param, mig=True))), open_nvml() as control:
            yield control


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(mig=True)


@pytest.fixture
def fake(gpu: FakeGpu) -> Iterator[FakeNvml]:
    with installed(FakeNvml(gpu)) as fake:
        yield fake


@pytest.fixture
def control(fake: FakeNvml) -> Iterator[Nvml]:
    with open_nvml() as control:
        yield control


def test_gpus_are_reported_by_index_and_uuid(any_control: MigControl) -> None:
    gpus = any_control.gpus()
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert len({gpu.uuid for gpu in gpus}) == len(gpus) >= 1
    assert all(gpu.uuid.startswith("GPU-") and gpu.name for gpu in gpus)


def test_a_layout_that_is_there_is_legal(any_control: MigControl) -> None:
    for gpu in any_control.gpus():
        if gpu.geometry is not None:
            assert layout_problem(gpu.geometry, gpu.layout) is None


def test_what_the_driver_says_of_its_profiles_is_what_the_table_says(
    any_control: MigControl, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["any_control"] == "hardware" and os.geteuid() != 0:
        pytest.skip("the driver tells where instances may start to root only")
    for gpu in any_control.gpus():
        if gpu.geometry is not None and gpu.geometry.gpu in GEOMETRIES:
            table = GEOMETRIES[gpu.geometry.gpu]
            for reported, known in zip(gpu.geometry.profiles, table.profiles, strict=True):
                assert (reported.name, reported.compute, reported.memory, reported.starts) == (
                    known.name,
                    known.compute,
                    known.memory,
                    known.starts,
                )


def test_an_instance_is_created_where_it_is_wanted(control: Nvml, gpu: FakeGpu) -> None:
    uuid = control.create(gpu.uuid, parse_placement(H100, "3g@4"))
    assert uuid == "MIG-00000001-0000-0000-0000-000000000000"
    (found,) = control.gpus()
    assert [(str(each.placement), each.uuid, each.users) for each in found.instances] == [("3g.40gb@4", uuid, ())]


def test_a_place_that_is_taken_is_refused(control: Nvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "3g@4"))
    with pytest.raises(ControlFailed, match=f"7g.80gb@0 cannot be created on {gpu.uuid} .NVML: Insufficient Resources"):
        control.create(gpu.uuid, parse_placement(H100, "7g@0"))


def test_an_instance_that_cannot_be_used_is_not_left_behind(control: Nvml, fake: FakeNvml, gpu: FakeGpu) -> None:
    fake.fail["nvmlGpuInstanceCreateComputeInstance"] = 999
    with pytest.raises(ControlFailed, match=r"2g\.20gb@0 cannot be created on .* \(NVML: Unknown Error\)"):
        control.create(gpu.uuid, parse_placement(H100, "2g@0"))
    assert gpu.layout == frozenset()


def test_an_instance_is_destroyed_and_its_place_is_free(control: Nvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "3g@4"))
    control.create(gpu.uuid, parse_placement(H100, "3g@0"))
    control.destroy(gpu.uuid, parse_placement(H100, "3g@4"))
    assert gpu.layout == {parse_placement(H100, "3g@0")}
    control.create(gpu.uuid, parse_placement(H100, "2g@4"))


def test_what_is_in_use_is_not_destroyed(control: Nvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "1g@6"))
    gpu.hold(parse_placement(H100, "1g@6"), 4194301, 4194302)
    with pytest.raises(ControlFailed, match=r"1g\.10gb@6 of .* in use by pid 4194301, pid 4194302"):
        control.destroy(gpu.uuid, parse_placement(H100, "1g@6"))
    assert gpu.layout == {parse_placement(H100, "1g@6")}
    assert control.gpus()[0].instances[0].users == ("pid 4194301", "pid 4194302")


def test_a_monitor_that_holds_an_instance_is_suspected(control: Nvml, fake: FakeNvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "1g@6"))
    fake.fail["nvmlComputeInstanceDestroy"] = 19
    with pytest.raises(ControlFailed, match="in use by another client, a monitor such as DCGM may hold it"):
        control.destroy(gpu.uuid, parse_placement(H100, "1g@6"))


def test_what_is_not_there_cannot_be_destroyed(control: Nvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "1g@5"))
    with pytest.raises(ControlFailed, match=r"1g\.10gb@6 of .* cannot be destroyed: there is no such instance"):
        control.destroy(gpu.uuid, parse_placement(H100, "1g@6"))


def test_the_mode_is_turned_on_and_off(control: Nvml, gpu: FakeGpu) -> None:
    gpu.mig = False
    control.set_mig(gpu.uuid, on=True)
    assert control.gpus()[0].mig is True
    control.set_mig(gpu.uuid, on=False)
    assert control.gpus()[0].mig is False


def test_the_mode_of_a_gpu_in_use_stays(control: Nvml, gpu: FakeGpu) -> None:
    gpu.mig, gpu.processes = False, [4194301]
    with pytest.raises(
        ControlFailed, match=r"MIG mode of GPU-.* cannot be turned on: the GPU is in use by pid 4194301"
    ):
        control.set_mig(gpu.uuid, on=True)


def test_a_mode_that_needs_a_reset_is_reported(control: Nvml, gpu: FakeGpu) -> None:
    gpu.mig, gpu.needs_reset = False, True
    with pytest.raises(ControlFailed, match="cannot be turned on without a reset of the GPU"):
        control.set_mig(gpu.uuid, on=True)


def test_a_user_who_is_not_root_gets_the_places_from_the_table(control: Nvml, fake: FakeNvml, gpu: FakeGpu) -> None:
    gpu.mig, fake.root = False, False
    assert control.gpus()[0].geometry == H100
    with pytest.raises(ControlFailed, match=r"cannot be turned on: only root may \(NVML: Insufficient Permissions\)"):
        control.set_mig(gpu.uuid, on=True)


def test_a_user_who_is_not_root_gets_the_instances(control: Nvml, fake: FakeNvml, gpu: FakeGpu) -> None:
    uuid = control.create(gpu.uuid, parse_placement(H100, "1g@6"))
    fake.root = False
    (found,) = control.gpus()
    assert (found.instances, found.unplaced) == ((), (uuid,))


def test_users_are_reported_by_name(control: Nvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "1g@6"))
    gpu.hold(parse_placement(H100, "1g@6"), os.getpid())
    name = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    assert control.gpus()[0].instances[0].users == (f"{name} (pid {os.getpid()})",)


def test_users_under_mps_are_reported_beside_their_server(control: Nvml, fake: FakeNvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "1g@6"))
    instance = gpu.compute(parse_placement(H100, "1g@6"))
    instance.processes, instance.mps_processes = [4194301], [4194301, 4194302]
    with pytest.raises(ControlFailed, match=r"it is in use by pid 4194301, pid 4194302$"):
        control.destroy(gpu.uuid, parse_placement(H100, "1g@6"))
    fake.fail["nvmlDeviceGetMPSComputeRunningProcesses_v3"] = 13  # a driver that does not know them
    (found,) = control.gpus()[0].instances
    assert found.users == ("pid 4194301",)


def test_an_instance_that_others_have_divided_is_in_use_as_long_as_a_part_of_it_is(control: Nvml, gpu: FakeGpu) -> None:
    control.create(gpu.uuid, parse_placement(H100, "2g@4"))
    (instance,) = gpu.instances
    instance.compute, instance.others = None, [FakeCompute(instance, 0, f"MIG-{number}") for number in (1, 2)]
    instance.others[1].processes.append(4194301)
    with pytest.raises(ControlFailed, match=r"in use by pid 4194301$"):
        control.destroy(gpu.uuid, parse_placement(H100, "2g@4"))
    assert len(instance.others) == 2
    instance.others[1].processes.clear()
    control.destroy(gpu.uuid, parse_placement(H100, "2g@4"))
    assert gpu.layout == frozenset()


def test_a_profile_that_the_driver_names_by_a_gigabyte_less_is_the_one_of_the_table(
    control: Nvml, fake: FakeNvml, gpu: FakeGpu
) -> None:
    profiles = [
        msgspec.structs.replace(each, name="7g.79gb") if each.name == "7g.80gb" else each for each in H100.profiles
    ]
    gpu.mig, gpu.geometry, fake.root = False, geometry_of("H100-80", profiles), False
    assert control.gpus()[0].geometry == H100


@pytest.mark.parametrize("code", [3, 4])
def test_users_that_are_not_reported_are_guarded_by_the_driver(
    control: Nvml, fake: FakeNvml, gpu: FakeGpu, code: int
) -> None:
    control.create(gpu.uuid, parse_placement(H100, "1g@6"))
    gpu.hold(parse_placement(H100, "1g@6"), 4194301)
    fake.fail["nvmlDeviceGetComputeRunningProcesses_v3"] = code
    assert control.gpus()[0].instances[0].users == ()
    with pytest.raises(ControlFailed, match="in use by another client"):
        control.destroy(gpu.uuid, parse_placement(H100, "1g@6"))
    assert gpu.layout == {parse_placement(H100, "1g@6")}


def test_a_gpu_without_mig_is_whole(control: Nvml, gpu: FakeGpu) -> None:
    gpu.has_mig, gpu.processes = False, [4194301]
    (found,) = control.gpus()
    assert (found.mig, found.geometry, found.instances, found.users) == (None, None, (), ("pid 4194301",))


def test_without_a_driver_it_is_reported_in_one_line() -> None:
    if not HARDWARE:
        with pytest.raises(ControlFailed, match=r"no NVIDIA driver answers on this machine \(NVML: .*\)"), open_nvml():
            pass


def test_the_fake_knows_no_more_than_the_driver(control: Nvml, fake: FakeNvml) -> None:
    import pynvml

    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlSystemGetCudaDriverVersion()
