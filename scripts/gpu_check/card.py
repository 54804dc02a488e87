"""Description of the card by NVML and nvidia-smi; read only."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from record import Skipped, run

MIB = 1 << 20
_QUERY = "name,driver_version,compute_mode,mig.mode.current,memory.total,memory.used,clocks.max.sm,power.limit"
_SMI = ("-L", f"--query-gpu={_QUERY} --format=csv")


@contextmanager
def opened(*, dry_run: bool) -> Iterator[Any]:
    """Open NVML (a fake card in a dry run) and yield its Python module; raises Skipped where there is none."""
    try:
        import pynvml
    except ImportError:
        raise Skipped("pynvml (nvidia-ml-py) is not installed") from None
    if dry_run:
        fake = import_module("tests.support.gpu.fake_nvml")
        with fake.installed(fake.FakeNvml(fake.FakeGpu())):
            yield pynvml
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Skipped(f"no NVIDIA driver: {error}") from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def first_uuid(nvml: Any) -> str:
    """The UUID of device 0."""
    found: str = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    return found


def used_mib(nvml: Any) -> int | None:
    """Memory in use on device 0; None when NVML does not report it."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used // MIB)
    except nvml.NVMLError:
        return None


def describe(nvml: Any, found: dict[str, Any]) -> None:
    """Fill in the driver's description of every card; a value it refuses is replaced by the error."""
    found["driver"] = _reported(nvml, nvml.nvmlSystemGetDriverVersion)
    found["cuda"] = _reported(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    found["cards"] = [_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
    found["nvidia-smi"] = [run(["nvidia-smi", *options.split(" ")]) for options in _SMI]


def _card(nvml: Any, card: Any) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(card)
    return {
        "name": nvml.nvmlDeviceGetName(card),
        "uuid": nvml.nvmlDeviceGetUUID(card),
        "memory_mib": memory.total // MIB,
        "used_mib": memory.used // MIB,
        "mig_mode": _reported(nvml, nvml.nvmlDeviceGetMigMode, card),
        "compute_mode": _reported(nvml, nvml.nvmlDeviceGetComputeMode, card),
        "processes": _reported(
            nvml, lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(card)]
        ),
        "profiles": list(_profiles(nvml, card)),
    }


def _profiles(nvml: Any, card: Any) -> Iterator[dict[str, Any]]:
    for kind in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, kind)
        except nvml.NVMLError:
            continue
        yield {
            "kind": kind,
            "id": info.id,
            "name": info.name,
            "slices": info.sliceCount,
            "instances": info.instanceCount,
            "multiprocessors": info.multiprocessorCount,
            "memory_mib": info.memorySizeMB,
            "placements": _reported(nvml, _placements, nvml, card, info.id),
        }


def _placements(nvml: Any, card: Any, profile: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, None, ctypes.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, places, ctypes.byref(count))
    return [(place.start, place.size) for place in places[: count.value]]


def _reported(nvml: Any, call: Callable[..., Any], *values: Any) -> Any:
    try:
        return call(*values)
    except nvml.NVMLError as error:
        return f"error: {error}"
