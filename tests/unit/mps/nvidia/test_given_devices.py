"""A server takes the devices that it was given, by the driver and by variables."""

from collections.abc import Iterator

import pytest

from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.server_config import ServerConfig
from sluice.models.errors import PartitionError
from sluice.mps.mig.placements import Placement
from sluice.mps.nvidia.given_devices import given_devices
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.cpu import default_partitions
from sluice.mps.partitions.partition import MigPartition, MpsPartition
from tests.support.gpu.fake_nvml import FakeGpu, FakeNvml, installed

AUTO = ServerConfig(partitions="auto")


@pytest.fixture(autouse=True)
def _looks_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    given_devices.cache_clear()
    yield
    given_devices.cache_clear()


@pytest.fixture
def whole() -> FakeGpu:
    return FakeGpu("A30", "NVIDIA A30")


@pytest.fixture
def divided() -> FakeGpu:
    return FakeGpu(mig=True)


@pytest.fixture
def fake(whole: FakeGpu, divided: FakeGpu) -> Iterator[FakeNvml]:
    """A whole GPU, and one with two instances."""
    with installed(FakeNvml(whole, divided)) as made:
        with open_nvml() as nvml:
            for name, start in (("1g.10gb", 0), ("3g.40gb", 4)):
                nvml.create(divided.uuid, Placement(divided.geometry.find(name), start))
        yield made


def uuids(gpu: FakeGpu) -> list[str]:
    return [each.uuid for instance in gpu.instances for each in instance.computes]


def test_without_a_gpu_the_cores_are_taken() -> None:
    with installed(FakeNvml()):
        assert configured_partitions(AUTO) == default_partitions()


@pytest.mark.parametrize("root", [True, False])
def test_each_whole_gpu_and_each_instance_is_a_partition(
    fake: FakeNvml, whole: FakeGpu, divided: FakeGpu, root: bool
) -> None:
    fake.root = root
    small, large = uuids(divided)
    assert configured_partitions(AUTO) == (
        MpsPartition("gpu0", whole.uuid, 100),
        MigPartition("mig0", small, "1g.10gb"),
        MigPartition("mig1", large, "3g.40gb"),
    )


def test_a_lost_gpu_is_not_taken(fake: FakeNvml, whole: FakeGpu) -> None:
    whole.lost = True
    assert [each.name for each in configured_partitions(AUTO)] == ["mig0", "mig1"]


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "all", ["gpu0", "mig0", "mig1"]),
        ("NVIDIA_VISIBLE_DEVICES", "void", ["gpu0", "mig0", "mig1"]),
        ("NVIDIA_VISIBLE_DEVICES", "0,1", ["gpu0", "mig0", "mig1"]),
        ("NVIDIA_VISIBLE_DEVICES", "none", None),
        ("CUDA_VISIBLE_DEVICES", "", None),
        ("NVIDIA_VISIBLE_DEVICES", "{whole}", ["gpu0"]),
        ("NVIDIA_VISIBLE_DEVICES", "{divided}", ["mig0", "mig1"]),
        ("CUDA_VISIBLE_DEVICES", "{large}, {whole}", ["gpu0", "mig0"]),
    ],
)
def test_variables_that_name_devices_are_followed(
    fake: FakeNvml,
    whole: FakeGpu,
    divided: FakeGpu,
    variable: str,
    value: str,
    names: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, value.format(whole=whole.uuid, divided=divided.uuid, large=uuids(divided)[1]))
    expected = [each.name for each in default_partitions()] if names is None else names
    assert [each.name for each in configured_partitions(AUTO)] == expected


def test_numbers_of_devices_are_refused(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(PartitionError, match="CUDA_VISIBLE_DEVICES: expected UUIDs such as GPU-5d1f7b7a, got '0,1'"):
        configured_partitions(AUTO)


def test_shares_are_of_the_only_device(fake: FakeNvml, divided: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", uuids(divided)[1])
    shares = tuple(MpsPartition(name, "auto", 50, 1000) for name in ("left", "right"))
    (left, right) = configured_partitions(ServerConfig(partitions=shares))
    assert left == MpsPartition("left", uuids(divided)[1], 50, 1000, profile="3g.40gb")
    assert right.name == "right"


def test_shares_of_one_device_are_refused_where_there_are_several(fake: FakeNvml) -> None:
    share = MpsPartition("left", "auto", 50)
    with pytest.raises(PartitionError, match="partition left: uuid: auto expects one GPU or MIG instance, got GPU-"):
        configured_partitions(ServerConfig(partitions=(share,)))


def test_a_share_is_of_the_daemon_of_the_environment(
    fake: FakeNvml, whole: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu.shared/pipe")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", whole.uuid)
    share = MpsPartition("quarter", "auto", 25, pipes="auto")
    (given,) = configured_partitions(ServerConfig(partitions=(share,)))
    assert (given, given.profile_kind) == (
        MpsPartition("quarter", whole.uuid, 25, pipes="/mps/nvidia.com/gpu.shared/pipe"),
        "mps-25",
    )


@pytest.mark.parametrize("value", [None, "", "pipe"])
def test_a_daemon_of_the_environment_is_missed(
    value: str | None, fake: FakeNvml, whole: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", value)
    share = MpsPartition("quarter", "auto", 25, pipes="auto")
    with pytest.raises(PartitionError, match="partition quarter: pipes: auto expects a daemon's directory in the env"):
        configured_partitions(ServerConfig(partitions=(share,)))
