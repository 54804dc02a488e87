"""A stateful fake NVML library below the real pynvml: GPUs whose MIG instances obey the geometry."""

# ruff: noqa: N802 (the functions have the library's names)

import ctypes
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from sluice.mps.mig.geometry import GEOMETRIES, Geometry, MigProfile
from sluice.mps.mig.placements import Placement, layout_problem

_KINDS = {
    "1g": pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE,
    "2g": pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
    "3g": pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE,
    "4g": pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE,
    "7g": pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE,
    "1g+me": pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1,
    "2g+me": pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1,
    "1g double": pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2,
}
_COMPUTE_KINDS = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
"""Slices by kind of compute instance; ids are the kinds."""

_ERRORS = {23: "Insufficient Resources", 16: "Reset Required"}
"""Messages of the library for codes that pynvml does not know itself."""

_FIRST_HANDLE = 1 << 20


class FakeInstance:
    """A GPU instance with its compute instances, each of which is a MIG device with processes on it."""

    def __init__(self, gpu: "FakeGpu", id: int, placement: Placement) -> None:
        self.gpu = gpu
        self.id = id
        self.placement = placement
        self.compute: FakeCompute | None = None
        self.others: list[FakeCompute] = []

    @property
    def computes(self) -> "list[FakeCompute]":
        """All compute instances; `others` are added by tests."""
        return [*([] if self.compute is None else [self.compute]), *self.others]


class FakeCompute:
    """A compute instance and its MIG device."""

    def __init__(self, instance: FakeInstance, kind: int, uuid: str) -> None:
        self.instance = instance
        self.kind = kind
        self.uuid = uuid
        self.processes: list[int] = []
        self.mps_processes: list[int] = []
        self.used_mib = 0


class FakeGpu:
    """A GPU; tests change its attributes."""

    def __init__(self, table: str = "H100-80", name: str = "NVIDIA H100 80GB HBM3", *, mig: bool = False) -> None:
        self.geometry: Geometry = GEOMETRIES[table]
        self.name = name
        self.uuid = ""
        self.mig = mig
        self.has_mig = True
        self.needs_reset = False
        self.processes: list[int] = []
        self.mps_processes: list[int] = []
        self.instances: list[FakeInstance] = []
        self.lost = False
        self.used_mib = 0
        self.meters: dict[str, int] = {}
        """Readings by the name in the library: use in percent, power in mW, energy in mJ."""

    def hold(self, placement: Placement, *pids: int) -> None:
        """Put processes on an instance."""
        self.compute(placement).processes.extend(pids)

    def compute(self, placement: Placement) -> "FakeCompute":
        """The compute instance of the GPU instance at a placement."""
        (compute,) = [each.compute for each in self.instances if each.placement == placement]
        assert compute is not None
        return compute

    @property
    def layout(self) -> frozenset[Placement]:
        return frozenset(each.placement for each in self.instances)


class _Refused(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


class FakeNvml:
    """The library as pynvml sees it. `root` grants all permissions; `fail` maps functions to error codes."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = gpus
        self.root = True
        self.fail: dict[str, int] = {}
        self.calls: list[str] = []
        self._things: list[Any] = []
        self._ids = 0
        self._events: queue.Queue[tuple[FakeGpu, int, int, int]] = queue.Queue()
        self.watched: set[str] = set()
        for index, gpu in enumerate(gpus):
            gpu.uuid = f"GPU-{index:08x}-0000-0000-0000-000000000000"

    def __getattr__(self, name: str) -> Callable[..., int | bytes]:
        if name == "nvmlErrorString":
            return lambda code: _ERRORS.get(code, "Unknown Error").encode()
        call = getattr(FakeNvml, f"_{name}", None)
        if call is None:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls.append(name)
            try:
                if name in self.fail:
                    raise _Refused(self.fail[name])
                call(self, *arguments)
            except _Refused as refused:
                return refused.code
            return int(pynvml.NVML_SUCCESS)

        return function

    # A handle is the index of an object that the fake has returned before.

    def _give(self, out: Any, thing: Any) -> None:
        if thing not in self._things:
            self._things.append(thing)
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = _FIRST_HANDLE + self._things.index(thing)

    def _thing(self, handle: Any) -> Any:
        value = ctypes.cast(handle, ctypes.c_void_p).value or 0
        if not 0 <= value - _FIRST_HANDLE < len(self._things):
            raise _Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._things[value - _FIRST_HANDLE]

    def _privileged(self) -> None:
        if not self.root:
            raise _Refused(pynvml.NVML_ERROR_NO_PERMISSION)

    def _give_all(self, things: list[Any], out: Any, count: Any) -> None:
        for index, thing in enumerate(things):
            self._give(ctypes.byref(out, index * ctypes.sizeof(ctypes.c_void_p)), thing)
        count._obj.value = len(things)

    # Events of GPUs without a registration are dropped, as the driver does.

    def tell(self, gpu: FakeGpu, type: int, data: int = 0, instance: int = 0xFFFFFFFF) -> None:
        """Report an error of a GPU or of one of its instances."""
        if gpu.uuid in self.watched:
            self._events.put((gpu, type, data, instance))

    def _nvmlEventSetCreate(self, out: Any) -> None:
        self.watched.clear()
        self._give(out, self._events)

    def _nvmlEventSetFree(self, handle: Any) -> None:
        self._thing(handle)

    def _nvmlDeviceGetSupportedEventTypes(self, device: Any, out: Any) -> None:
        self._thing(device)
        out._obj.value = pynvml.nvmlEventTypeAll

    def _nvmlDeviceRegisterEvents(self, device: Any, types: Any, handle: Any) -> None:
        assert types.value == pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
        self._thing(handle)
        self.watched.add(self._thing(device).uuid)

    def _nvmlEventSetWait_v2(self, handle: Any, data: Any, timeout_ms: Any) -> None:
        if any(gpu.lost and gpu.uuid in self.watched for gpu in self.gpus):
            raise _Refused(pynvml.NVML_ERROR_GPU_IS_LOST)
        try:
            gpu, type, number, instance = self._thing(handle).get(timeout=timeout_ms.value / 1000)
        except queue.Empty:
            raise _Refused(pynvml.NVML_ERROR_TIMEOUT) from None
        into = data._obj
        self._give(ctypes.byref(into), gpu)
        into.eventType, into.eventData, into.gpuInstanceId = type, number, instance

    def _nvmlInitWithFlags(self, flags: int) -> None:
        pass

    def _nvmlShutdown(self) -> None:
        pass

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> None:
        if self.gpus[index.value].lost:
            raise _Refused(pynvml.NVML_ERROR_GPU_IS_LOST)
        self._give(device, self.gpus[index.value])

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> None:
        computes = [each.compute for gpu in self.gpus for each in gpu.instances if each.compute is not None]
        things: list[FakeGpu | FakeCompute] = [*self.gpus, *computes]
        for each in things:
            if each.uuid == uuid.value.decode():
                return self._give(device, each)
        raise _Refused(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetUUID(self, device: Any, out: Any, length: Any) -> None:
        out.value = self._thing(device).uuid.encode()

    def _nvmlDeviceGetName(self, device: Any, out: Any, length: Any) -> None:
        out.value = self._thing(device).name.encode()

    def _nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> None:
        found = self._thing(device)
        gpu = found.instance.gpu if isinstance(found, FakeCompute) else found
        if gpu.lost:
            raise _Refused(pynvml.NVML_ERROR_GPU_IS_LOST)
        profile = found.instance.placement.profile if isinstance(found, FakeCompute) else gpu.geometry.profiles[0]
        memory._obj.total = (profile.memory_mib or 0) << 20
        memory._obj.used = found.used_mib << 20
        memory._obj.free = memory._obj.total - memory._obj.used

    def _nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> None:
        rates._obj.gpu, rates._obj.memory = self._meter(device, "gpu"), self._meter(device, "memory")

    def _nvmlDeviceGetPowerUsage(self, device: Any, out: Any) -> None:
        out._obj.value = self._meter(device, "PowerUsage")

    def _nvmlDeviceGetEnforcedPowerLimit(self, device: Any, out: Any) -> None:
        out._obj.value = self._meter(device, "EnforcedPowerLimit")

    def _nvmlDeviceGetTotalEnergyConsumption(self, device: Any, out: Any) -> None:
        out._obj.value = self._meter(device, "TotalEnergyConsumption")

    def _meter(self, device: Any, name: str) -> int:
        meters = self._thing(device).meters
        if name not in meters:
            raise _Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(meters[name])

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, out: Any) -> None:
        self._give_processes(self._thing(device).processes, count, out)

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(self, device: Any, count: Any, out: Any) -> None:
        self._give_processes(self._thing(device).mps_processes, count, out)

    def _give_processes(self, processes: list[int], count: Any, out: Any) -> None:
        room, count._obj.value = count._obj.value, len(processes)
        if processes and (out is None or room < len(processes)):
            raise _Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for index, pid in enumerate(processes):
            out[index].pid = pid

    def _nvmlDeviceGetMigMode(self, device: Any, current: Any, pending: Any) -> None:
        gpu = self._thing(device)
        if not gpu.has_mig:
            raise _Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        current._obj.value = int(gpu.mig)
        pending._obj.value = int(gpu.mig) ^ int(gpu.needs_reset and "nvmlDeviceSetMigMode" in self.calls)

    def _nvmlDeviceSetMigMode(self, device: Any, mode: int, status: Any) -> None:
        self._privileged()
        gpu = self._thing(device)
        if gpu.processes or gpu.instances:
            raise _Refused(pynvml.NVML_ERROR_IN_USE)
        status._obj.value = pynvml.NVML_ERROR_RESET_REQUIRED if gpu.needs_reset else pynvml.NVML_SUCCESS
        if not gpu.needs_reset:
            gpu.mig = bool(mode)

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, kind: int, info: Any) -> None:
        profile = _profile(self._thing(device).geometry, lambda each: _KINDS[_shape(each)] == kind)
        into = info._obj
        into.id, into.sliceCount, into.name = profile.id, profile.compute, f"MIG {profile.name}".encode()
        into.instanceCount = 1 if profile.media else len(profile.starts)
        into.multiprocessorCount, into.memorySizeMB = profile.multiprocessors or 0, profile.memory_mib or 0

    def _nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, device: Any, id: int, out: Any, count: Any) -> None:
        self._privileged()
        profile = _profile(self._thing(device).geometry, lambda each: each.id == id)
        if out is not None and count._obj.value < len(profile.starts):
            raise _Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        count._obj.value = len(profile.starts)
        for index, start in enumerate(profile.starts if out is not None else ()):
            out[index].start, out[index].size = start, profile.memory

    def _nvmlDeviceCreateGpuInstanceWithPlacement(self, device: Any, id: int, where: Any, out: Any) -> None:
        self._privileged()
        gpu = self._thing(device)
        if not gpu.mig:
            raise _Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        profile = _profile(gpu.geometry, lambda each: each.id == id)
        placement = Placement(profile, where._obj.start)
        if placement.start not in profile.starts or where._obj.size != profile.memory:
            raise _Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if placement in gpu.layout or layout_problem(gpu.geometry, gpu.layout | {placement}):
            raise _Refused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        self._ids += 1
        gpu.instances.append(FakeInstance(gpu, self._ids, placement))
        self._give(out, gpu.instances[-1])

    def _nvmlGpuInstanceDestroy(self, handle: Any) -> None:
        self._privileged()
        instance = self._thing(handle)
        if instance.computes:
            raise _Refused(pynvml.NVML_ERROR_IN_USE)
        instance.gpu.instances.remove(instance)

    def _nvmlDeviceGetGpuInstances(self, device: Any, id: int, out: Any, count: Any) -> None:
        self._privileged()
        found = [each for each in self._thing(device).instances if each.placement.profile.id == id]
        self._give_all(found, out, count)

    def _nvmlGpuInstanceGetInfo(self, handle: Any, info: Any) -> None:
        self._privileged()
        instance = self._thing(handle)
        placement = instance.placement
        info._obj.id, info._obj.profileId = instance.id, placement.profile.id
        info._obj.placement.start, info._obj.placement.size = placement.start, placement.profile.memory

    def _nvmlGpuInstanceGetComputeInstanceProfileInfoV(self, handle: Any, kind: int, engine: int, info: Any) -> None:
        slices = self._thing(handle).placement.profile.compute
        if _COMPUTE_KINDS.get(kind, slices + 1) > slices:
            raise _Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info._obj.id, info._obj.sliceCount = kind, _COMPUTE_KINDS[kind]
        info._obj.instanceCount = slices // _COMPUTE_KINDS[kind]

    def _nvmlGpuInstanceCreateComputeInstance(self, handle: Any, id: int, out: Any) -> None:
        self._privileged()
        instance = self._thing(handle)
        if instance.compute is not None:
            raise _Refused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        instance.compute = FakeCompute(instance, id, f"MIG-{instance.id:08x}-0000-0000-0000-000000000000")
        self._give(out, instance.compute)

    def _nvmlGpuInstanceGetComputeInstances(self, handle: Any, id: int, out: Any, count: Any) -> None:
        self._give_all([each for each in self._thing(handle).computes if each.kind == id], out, count)

    def _nvmlComputeInstanceDestroy(self, handle: Any) -> None:
        self._privileged()
        compute = self._thing(handle)
        if compute.processes or compute.mps_processes:
            raise _Refused(pynvml.NVML_ERROR_IN_USE)
        if compute in compute.instance.others:
            compute.instance.others.remove(compute)
        else:
            compute.instance.compute = None

    def _nvmlDeviceGetMaxMigDeviceCount(self, device: Any, count: Any) -> None:
        count._obj.value = self._thing(device).geometry.compute

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: Any, out: Any) -> None:
        # In the order of their starts, and with a hole before those that are not at the beginning.
        for each in self._thing(device).instances:
            for number, compute in enumerate(each.computes, each.placement.start):
                if number == index.value:
                    return self._give(out, compute)
        raise _Refused(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetGpuInstanceId(self, device: Any, id: Any) -> None:
        id._obj.value = self._thing(device).instance.id


def _shape(profile: MigProfile) -> str:
    if (profile.compute, profile.memory) == (1, 2):
        return "1g double"
    return f"{profile.compute}g{'+me' if profile.media else ''}"


def _profile(geometry: Geometry, matches: Callable[[MigProfile], bool]) -> MigProfile:
    for profile in geometry.profiles:
        if matches(profile):
            return profile
    raise _Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)


@contextmanager
def installed(fake: FakeNvml) -> Iterator[FakeNvml]:
    """Put the fake where pynvml looks for the library, until the threads that watch devices are done with it."""
    before = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = fake
    try:
        yield fake
    finally:
        for thread in threading.enumerate():
            if thread.name == "device-watch":
                thread.join(60)
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
