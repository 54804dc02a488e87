"""A fake GPU for child processes: a `sitecustomize` replaces their libcuda and NVML.

A process sees the device of CUDA_VISIBLE_DEVICES. With a context it is a client of the fake MPS daemon, if one runs.
The memory in use on a device, in MiB, is in the file FAKE_GPU_TAKEN/UUID.
"""

# ruff: noqa: N802 (the functions have the libraries' names)

import ctypes
import os
import uuid
from pathlib import Path
from typing import Any

import pynvml

from tests.support.gpu.fake_mps import SMS, FakeCuda
from tests.support.gpu.fake_nvml import FakeGpu, FakeNvml

NAME = "NVIDIA H100 80GB HBM3"
_SITE = """
import os
if os.environ.get("CUDA_VISIBLE_DEVICES"):
    from tests.support.gpu.fake_gpu import put_in
    put_in()
"""


def environment(directory: Path) -> dict[str, str]:
    """Write the `sitecustomize` to `directory`; returns the environment variables that processes need."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_SITE)
    # The root of the repository, for `sitecustomize` to find this module: Sluice itself is found elsewhere.
    path = os.pathsep.join((str(directory), str(Path(__file__).parents[3])))
    return {"PYTHONPATH": path, "FAKE_GPU_TAKEN": str(directory)}


def put_in() -> None:
    """Replace the libraries in this process."""
    device = os.environ["CUDA_VISIBLE_DEVICES"]
    libcuda = _Libcuda(device)

    class Library(ctypes.CDLL):
        def __new__(cls, name: str | None, *arguments: Any, **options: Any) -> Any:
            return libcuda if name == "libcuda.so.1" else super().__new__(cls)

    ctypes.CDLL = Library  # type: ignore[misc]
    gpu = _Gpu(mig=device.startswith("MIG-"))
    pynvml.nvmlLib = FakeNvml(gpu)
    gpu.uuid = device


class _Gpu(FakeGpu):
    @property
    def used_mib(self) -> int:
        file = Path(os.environ["FAKE_GPU_TAKEN"], self.uuid)
        return int(file.read_text()) if file.exists() else 0

    @used_mib.setter
    def used_mib(self, value: int) -> None:
        pass


class _Libcuda:
    def __init__(self, device: str) -> None:
        self._uuid = uuid.UUID(device.removeprefix("GPU-").removeprefix("MIG-"))
        self._client: FakeCuda | None = None

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDeviceGetUuid_v2(self, identity: Any, device: Any) -> int:
        identity[:] = [bytes([each]) for each in self._uuid.bytes]
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = NAME.encode()
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self._client = self._client or FakeCuda(os.environ)
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = self._client.multiprocessors if self._client else SMS
        return 0
