"""Fatal errors of GPUs, as NVML reports them."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from sluice.models.errors import ControlFailed

_WHOLE_GPU = 0xFFFFFFFF
"""The instance number of an error that concerns the whole GPU."""
_HARMLESS = frozenset({13, 31, 43, 45, 63, 68, 92, 94, 109})
"""Xids of an application's own errors, which CUDA reports to it, and of memory errors that the driver has handled."""


class DeviceFailure(NamedTuple):
    """`devices` (UUIDs of GPUs and MIG devices) no longer run anything, for `reason`."""

    devices: frozenset[str]
    reason: str


class NvmlEvents:
    """The errors of all GPUs that report any. `pynvml` is initialised; `gpus` are handles by UUID.

    `instances` are the UUIDs of the MIG devices by the number of their GPU instance, by GPU.
    """

    def __init__(self, pynvml: Any, gpus: Mapping[str, Any], instances: Mapping[str, Mapping[int, str]]) -> None:
        self._nvml = pynvml
        self._gpus = dict(gpus)
        self._instances = instances
        self._watched: Collection[str] = ()
        self._set: Any = None
        self._register()

    @property
    def watched(self) -> Collection[str]:
        """The UUIDs of the GPUs that report errors and are not lost."""
        return self._watched

    def wait(self, timeout_s: float) -> DeviceFailure | None:
        """Block until a device has a fatal error; returns None after `timeout_s`, and for a harmless error.

        Raises ControlFailed when the driver reports nothing any more.
        """
        try:
            return self._next(timeout_s)
        except self._nvml.NVMLError as error:
            raise ControlFailed(f"the driver reports no more errors of devices (NVML: {error})") from error

    def _next(self, timeout_s: float) -> DeviceFailure | None:
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, round(timeout_s * 1000))
        except nvml.NVMLError_Timeout:
            return None
        except nvml.NVMLError_GpuIsLost:
            return self._lost_gpus()
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            if event.eventData in _HARMLESS:
                return None
            reason = f"Xid {event.eventData}"
        else:
            reason = "an uncorrectable memory error (ECC)"
        gpu = nvml.nvmlDeviceGetUUID(event.device)
        instances = self._instances.get(gpu, {})
        if event.gpuInstanceId == _WHOLE_GPU or event.gpuInstanceId not in instances:
            return DeviceFailure(frozenset({gpu, *instances.values()}), f"{gpu} has {reason}")
        device = instances[event.gpuInstanceId]
        return DeviceFailure(frozenset({device}), f"{device} has {reason}")

    def close(self) -> None:
        """Stop watching."""
        if self._set is not None:
            self._nvml.nvmlEventSetFree(self._set)
            self._set = None

    def _register(self) -> None:
        nvml = self._nvml
        self.close()
        self._set = nvml.nvmlEventSetCreate()
        watched = []
        for uuid, device in self._gpus.items():
            with suppress(nvml.NVMLError_NotSupported):
                wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
                wanted &= nvml.nvmlDeviceGetSupportedEventTypes(device)
                if wanted:
                    nvml.nvmlDeviceRegisterEvents(device, wanted, self._set)
                    watched.append(uuid)
        self._watched = tuple(watched)

    def _lost_gpus(self) -> DeviceFailure:
        """Find the GPUs that have fallen off the bus and stop watching them: they would be reported again and again."""
        nvml = self._nvml
        lost = []
        for uuid, device in list(self._gpus.items()):
            try:
                nvml.nvmlDeviceGetMemoryInfo(device)
            except nvml.NVMLError:
                lost.append(uuid)
                del self._gpus[uuid]
        if not lost:  # the driver would report it again at once, for ever
            raise ControlFailed("the driver reports a lost GPU, but all GPUs answer")
        self._register()
        devices = frozenset(lost).union(*(self._instances.get(uuid, {}).values() for uuid in lost))
        return DeviceFailure(devices, f"{', '.join(lost)} has fallen off the bus")
