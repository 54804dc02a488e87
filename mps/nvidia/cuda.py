"""The GPU that this process sees, from the driver's CUDA library; `python -m sluice.mps.nvidia.cuda` prints JSON."""

import ctypes
import sys
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from sluice.mps.partitions.isolation_report import VisibleGpu

_LIBRARY = "libcuda.so.1"
_MULTIPROCESSOR_COUNT = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
_NO_DEVICE = 100
_UUID_BYTES = 16
_NAME_BYTES = 256


def visible_gpu(library: Any = None, attach: bool = False) -> VisibleGpu:
    """Return the number of devices that this process sees, and device 0; never raises: `error` is CUDA's answer.

    With `attach` the process creates the context on the device that all its models will share: only with a context is
    it a client of MPS, and has the multiprocessors of a client.
    """
    try:
        cuda = library or ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return VisibleGpu(error=str(error))
    count, device, multiprocessors = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    context = ctypes.c_void_p()
    identity = (ctypes.c_char * _UUID_BYTES)()
    device_name = ctypes.create_string_buffer(_NAME_BYTES)
    # The _v2 function returns the UUID of a MIG instance; older drivers know only those of GPUs.
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid

    def retain() -> int:
        status: int = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        return status

    calls: tuple[tuple[str, Callable[[], int]], ...] = (
        ("cuInit", lambda: cuda.cuInit(0)),
        ("cuDeviceGetCount", lambda: cuda.cuDeviceGetCount(ctypes.byref(count))),
        ("cuDeviceGet", lambda: cuda.cuDeviceGet(ctypes.byref(device), 0)),
        ("cuDeviceGetUuid", lambda: get_uuid(identity, device)),
        ("cuDeviceGetName", lambda: cuda.cuDeviceGetName(device_name, _NAME_BYTES, device)),
        *([("cuDevicePrimaryCtxRetain", retain)] if attach else []),
        (
            "cuDeviceGetAttribute",
            lambda: cuda.cuDeviceGetAttribute(ctypes.byref(multiprocessors), _MULTIPROCESSOR_COUNT, device),
        ),
    )
    for name, call in calls:
        if status := call():
            what = "no device is visible" if status == _NO_DEVICE else f"{name} failed with error {status}"
            return VisibleGpu(count.value, error=what)
    name = device_name.value.decode(errors="replace")
    return VisibleGpu(count.value, f"{uuid.UUID(bytes=bytes(identity))}", multiprocessors.value, name=name)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(visible_gpu()))
