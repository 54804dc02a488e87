import uuid
from typing import Any

from sluice.mps.nvidia.cuda import visible_gpu
from sluice.mps.partitions.isolation_report import VisibleGpu

UUID = uuid.UUID("5d1f7b7a-9c1d-4b52-8b2a-0123456789ab")
MULTIPROCESSOR_COUNT = 16
NAME = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


class Driver:
    """The calls of libcuda that are made, over one device; `fails` maps their names to errors."""

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.contexts = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.fails.get(name) or getattr(self, f"_{name}")(*arguments)

    def _cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def _cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 1
        return 0

    def _cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal
        return 0

    def _cuDeviceGetUuid_v2(self, identity: Any, device: Any) -> int:  # noqa: N802
        identity[:] = [bytes([each]) for each in UUID.bytes]
        return 0

    def _cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:  # noqa: N802
        name.value = NAME.encode()
        return 0

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        self.contexts += 1
        return 0

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        assert attribute == MULTIPROCESSOR_COUNT
        value._obj.value = 33 if self.contexts else 132
        return 0


def test_the_device_that_is_visible_is_reported_without_a_context() -> None:
    driver = Driver()
    assert visible_gpu(driver) == VisibleGpu(1, str(UUID), 132, name=NAME)
    assert driver.contexts == 0


def test_with_a_context_it_has_the_multiprocessors_of_a_client() -> None:
    assert visible_gpu(Driver(), attach=True) == VisibleGpu(1, str(UUID), 33, name=NAME)


def test_what_cuda_refuses_is_reported() -> None:
    assert visible_gpu(Driver(cuInit=100)).error == "no device is visible"
    assert visible_gpu(Driver(cuDevicePrimaryCtxRetain=807), attach=True).error == (
        "cuDevicePrimaryCtxRetain failed with error 807"
    )
