"""GPUs and MIG instances through NVML, the library of the NVIDIA driver."""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from sluice.models.errors import ConfigError, ControlFailed
from sluice.models.processes import process_name
from sluice.mps.mig.geometry import GEOMETRIES, Geometry, MigProfile, geometry_of
from sluice.mps.mig.inventory import Gpu, Instance
from sluice.mps.mig.placements import Placement
from sluice.mps.nvidia.nvml_events import NvmlEvents

_MIB = 1 << 20
_NO_DRIVER = "no NVIDIA driver answers on this machine"


@contextmanager
def open_nvml() -> Iterator["Nvml"]:
    """Open the driver of this machine; raises ControlFailed, in one line, where there is none."""
    try:
        import pynvml
    except ImportError:
        raise ControlFailed("GPUs need the package nvidia-ml-py: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ControlFailed(f"{_NO_DRIVER} (NVML: {error})") from None
    try:
        yield Nvml(pynvml)
    finally:
        pynvml.nvmlShutdown()


class Nvml:
    """A MigControl on pynvml, which has been initialised."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml

    @property
    def library(self) -> Any:
        """The module pynvml."""
        return self._nvml

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs as they are now, by index."""
        with self._control_errors("the GPUs cannot be listed"):
            return tuple(map(self._gpu_or_lost, range(self._nvml.nvmlDeviceGetCount())))

    def events(self) -> NvmlEvents:
        """The fatal errors of all GPUs that are not lost already, and of their present instances."""
        with self._control_errors("the GPUs cannot be watched"):
            nvml = self._nvml
            gpus, instances = {}, {}
            for index in range(nvml.nvmlDeviceGetCount()):
                with suppress(*self._lost):
                    device = nvml.nvmlDeviceGetHandleByIndex(index)
                    uuid = nvml.nvmlDeviceGetUUID(device)
                    instances[uuid] = self._mig_devices(device)
                    gpus[uuid] = device
            numbers = {gpu: {number: each[0][1] for number, each in found.items()} for gpu, found in instances.items()}
            return NvmlEvents(nvml, gpus, numbers)

    def free_memory_mib(self, device: str) -> int:
        """The memory of a GPU or MIG device, by UUID, that no process holds."""
        with self._control_errors(f"the memory of {device} cannot be read"):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._nvml.nvmlDeviceGetHandleByUUID(device)).free // _MIB)

    def set_mig(self, gpu: str, on: bool) -> None:
        """Turn the MIG mode on or off; refused while there are instances, or processes on the whole GPU."""
        state = f"MIG mode of {gpu} cannot be turned {'on' if on else 'off'}"
        with self._control_errors(state):
            device = self._nvml.nvmlDeviceGetHandleByUUID(gpu)
            if users := self._users(device):
                raise ControlFailed(f"{state}: the GPU is in use by {', '.join(users)}")
            status = self._nvml.nvmlDeviceSetMigMode(device, int(on))
            current, pending = self._nvml.nvmlDeviceGetMigMode(device)
        if status or current != pending:
            raise ControlFailed(f"{state} without a reset of the GPU (nvidia-smi --gpu-reset); it is pending")

    def create(self, gpu: str, placement: Placement) -> str:
        """Create an instance there with one compute instance on all of it; returns the UUID of its MIG device."""
        nvml = self._nvml
        with self._control_errors(f"{placement} cannot be created on {gpu}"):
            device = nvml.nvmlDeviceGetHandleByUUID(gpu)
            where = nvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.profile.memory)
            instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, placement.profile.id, ctypes.byref(where))
            try:
                nvml.nvmlGpuInstanceCreateComputeInstance(
                    instance, self._full_compute_profile(instance, placement.profile)
                )
            except BaseException:
                # It is useless without a compute instance, and in the way of the next attempt.
                nvml.nvmlGpuInstanceDestroy(instance)
                raise
            made = self._mig_devices(device).get(nvml.nvmlGpuInstanceGetInfo(instance).id)
        if not made:
            raise ControlFailed(f"{placement} was created on {gpu}, but the driver lists no MIG device for it")
        return made[0][1]

    def destroy(self, gpu: str, placement: Placement) -> None:
        """Destroy the instance there with its compute instances."""
        nvml = self._nvml
        refused = f"{placement} of {gpu} cannot be destroyed"
        with self._control_errors(refused):
            device = nvml.nvmlDeviceGetHandleByUUID(gpu)
            instances = self._gpu_instances(device, placement.profile)
            found = [each for each in instances if each[1].placement.start == placement.start]
            if not found:
                raise ControlFailed(f"{refused}: there is no such instance")
            ((instance, info),) = found
            if users := self._users(*(mig_device for mig_device, _ in self._mig_devices(device).get(info.id, ()))):
                raise ControlFailed(f"{refused}: it is in use by {', '.join(users)}")
            for compute_instance in self._compute_instances(instance):
                nvml.nvmlComputeInstanceDestroy(compute_instance)
            nvml.nvmlGpuInstanceDestroy(instance)

    @property
    def _lost(self) -> tuple[type[Exception], ...]:
        """The errors of a GPU that has fallen off the bus, or that needs a reset."""
        return self._nvml.NVMLError_GpuIsLost, self._nvml.NVMLError_ResetRequired, self._nvml.NVMLError_Unknown

    def _gpu_or_lost(self, index: int) -> Gpu:
        try:
            return self._gpu(index)
        except self._lost as error:  # the other GPUs still work
            return Gpu(index, "", "", 0, None, lost=str(error))

    def _gpu(self, index: int) -> Gpu:
        nvml = self._nvml
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = nvml.nvmlDeviceGetUUID(device), nvml.nvmlDeviceGetName(device)
        memory_mib = nvml.nvmlDeviceGetMemoryInfo(device).total // _MIB
        try:
            mig = bool(nvml.nvmlDeviceGetMigMode(device)[0])
        except nvml.NVMLError_NotSupported:
            return Gpu(index, uuid, name, memory_mib, None, users=self._users(device))
        geometry = self._geometry(device, name)
        if not mig or geometry is None:
            return Gpu(index, uuid, name, memory_mib, mig, geometry, users=() if mig else self._users(device))
        try:
            instances = tuple(self._instances(device, geometry))
        except nvml.NVMLError_NoPermission:
            unplaced = tuple(mig_uuid for each in self._mig_devices(device).values() for _, mig_uuid in each)
            return Gpu(index, uuid, name, memory_mib, mig, geometry, unplaced=unplaced)
        return Gpu(index, uuid, name, memory_mib, mig, geometry, instances)

    def _geometry(self, device: Any, name: str) -> Geometry | None:
        """The geometry from the driver; where only root may see placements, from the table with the same profiles."""
        nvml = self._nvml
        profiles = []
        for kind in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_FunctionNotFound):
                continue
            profiles.append((info, info.name.lower().removeprefix("mig ")))
        known = _known_geometry({profile_name: info.multiprocessorCount for info, profile_name in profiles})
        found = []
        for info, profile_name in profiles:
            try:
                list_places = partial(nvml.nvmlDeviceGetGpuInstancePossiblePlacements, device, info.id)
                places = self._list_handles(nvml.c_nvmlGpuInstancePlacement_t, 0, list_places)
            except (nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound):  # not root, or an old driver
                return known
            starts = tuple(sorted(place.start for place in places))
            if places:
                numbers = info.multiprocessorCount, info.memorySizeMB
                found.append(MigProfile(profile_name, info.id, info.sliceCount, places[0].size, starts, *numbers))
        return geometry_of(known.gpu if known is not None else name, found) if found else None

    def _instances(self, device: Any, geometry: Geometry) -> Iterator[Instance]:
        mig_devices = self._mig_devices(device)
        for profile in geometry.profiles:
            for _, info in self._gpu_instances(device, profile):
                own = mig_devices.get(info.id, [])
                uuid, users = own[0][1] if own else "", self._users(*(mig_device for mig_device, _ in own))
                yield Instance(Placement(profile, info.placement.start), uuid, users)

    def _gpu_instances(self, device: Any, profile: MigProfile) -> list[tuple[Any, Any]]:
        """The instances of a profile, each with its info."""
        nvml = self._nvml
        list_instances = partial(nvml.nvmlDeviceGetGpuInstances, device, profile.id)
        handles = self._list_handles(nvml.c_nvmlGpuInstance_t, len(profile.starts), list_instances)
        return [(handle, nvml.nvmlGpuInstanceGetInfo(handle)) for handle in handles]

    def _mig_devices(self, device: Any) -> dict[int, list[tuple[Any, str]]]:
        """Handle and UUID of the MIG devices by GPU instance: several if an instance was divided by another program."""
        nvml = self._nvml
        found: dict[int, list[tuple[Any, str]]] = {}
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            try:
                mig_device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
            except nvml.NVMLError_NotFound:  # the numbers have gaps
                continue
            own = found.setdefault(nvml.nvmlDeviceGetGpuInstanceId(mig_device), [])
            own.append((mig_device, nvml.nvmlDeviceGetUUID(mig_device)))
        return found

    def _compute_profiles(self, instance: Any) -> Iterator[Any]:
        nvml = self._nvml
        for kind in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue

    def _full_compute_profile(self, instance: Any, profile: MigProfile) -> int:
        """The profile of a compute instance that takes all of a GPU instance."""
        for info in self._compute_profiles(instance):
            if info.sliceCount == profile.compute:
                return int(info.id)
        raise ControlFailed(f"no compute instance takes all {profile.compute} slices of {profile.name}")

    def _compute_instances(self, instance: Any) -> Iterator[Any]:
        nvml = self._nvml
        for info in list(self._compute_profiles(instance)):
            list_instances = partial(nvml.nvmlGpuInstanceGetComputeInstances, instance, info.id)
            yield from self._list_handles(nvml.c_nvmlComputeInstance_t, info.instanceCount, list_instances)

    def _list_handles(self, form: Any, room: int, call: Callable[[Any, Any], object]) -> list[Any]:
        """Call a function that fills an array of `room` elements; with room 0 it is first asked for the count."""
        count = ctypes.c_uint(room)
        if not room:
            call(None, ctypes.byref(count))
        array = (form * max(count.value, 1))()
        call(array, ctypes.byref(count))
        return list(array[: count.value])

    def _users(self, *devices: Any) -> tuple[str, ...]:
        """The processes with a context on one of the devices, MPS clients as well as their server.

        None where the driver does not list them; it then guards devices in use by itself.
        """
        nvml, found = self._nvml, dict[int, None]()
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3):
            with suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound):
                found |= dict.fromkeys(process.pid for device in devices for process in ask(device))
        return tuple(process_name(pid) for pid in found)

    @contextmanager
    def _control_errors(self, failed: str) -> Iterator[None]:
        """Turn the errors of NVML into ControlFailed."""
        nvml = self._nvml
        try:
            yield
        except nvml.NVMLError_NoPermission as error:
            raise ControlFailed(f"{failed}: only root may (NVML: {error})") from error
        except nvml.NVMLError_InUse as error:
            hint = "a monitor such as DCGM may hold it"
            raise ControlFailed(f"{failed}: it is in use by another client, {hint} (NVML: {error})") from error
        except nvml.NVMLError as error:
            raise ControlFailed(f"{failed} (NVML: {error})") from error


def _known_geometry(multiprocessors: Mapping[str, int]) -> Geometry | None:
    """Return the table with these profiles and, where it has them, these multiprocessors."""
    for geometry in GEOMETRIES.values():
        found = {name: _find_profile(geometry, name) for name in multiprocessors}
        if set(found.values()) == set(geometry.profiles) and all(
            profile is not None and profile.multiprocessors in (None, multiprocessors[name])
            for name, profile in found.items()
        ):
            return geometry
    return None


def _find_profile(geometry: Geometry, name: str) -> MigProfile | None:
    with suppress(ConfigError):
        return geometry.find(name)
    return None
