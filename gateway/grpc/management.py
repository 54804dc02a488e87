"""gRPC calls of the control plane: configuration, statistics, repository, settings."""

from typing import Any

from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.gateway.grpc.errors import parse_version, unary_call
from sluice.gateway.management.controlplane import NO_CUDA, ControlPlane
from sluice.models.errors import RequestError, UnsupportedRequest


class ManagementCalls(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The calls of `inference.GRPCInferenceService` apart from inference, health and metadata."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @unary_call
    def ModelConfig(self, request: Any) -> Any:  # noqa: D102, N802
        config = self._control.model_config(request.name, parse_version(request.version))
        return ParseDict({"config": config}, service_pb2.ModelConfigResponse())

    @unary_call
    def ModelStatistics(self, request: Any) -> Any:  # noqa: D102, N802
        statistics = self._control.model_statistics(request.name, parse_version(request.version))
        return ParseDict(statistics, service_pb2.ModelStatisticsResponse())

    @unary_call
    def RepositoryIndex(self, request: Any) -> Any:  # noqa: D102, N802
        response = service_pb2.RepositoryIndexResponse()
        for each in self._control.repository.index(request.repository_name, request.ready):
            response.models.add(name=each.name, version=each.version, state=each.state, reason=each.reason)
        return response

    @unary_call
    async def RepositoryModelLoad(self, request: Any) -> Any:  # noqa: D102, N802
        await self._control.repository.load(request.repository_name, request.model_name, _parameters(request))
        return service_pb2.RepositoryModelLoadResponse()

    @unary_call
    async def RepositoryModelUnload(self, request: Any) -> Any:  # noqa: D102, N802
        await self._control.repository.unload(request.repository_name, request.model_name, _parameters(request))
        return service_pb2.RepositoryModelUnloadResponse()

    @unary_call
    def SystemSharedMemoryStatus(self, request: Any) -> Any:  # noqa: D102, N802
        response = service_pb2.SystemSharedMemoryStatusResponse()
        for each in self._control.shared_memory.status(request.name or None):
            region = response.regions[each.name]
            region.name, region.key, region.offset, region.byte_size = each.name, each.key, each.offset, each.byte_size
        return response

    @unary_call
    def SystemSharedMemoryRegister(self, request: Any) -> Any:  # noqa: D102, N802
        for name, value in (("offset", request.offset), ("byte_size", request.byte_size)):
            if value >= 2**63:
                raise RequestError(f"'{name}' must be a whole number of bytes below 2**63, got {value}")
        self._control.shared_memory.register(request.name, request.key, request.offset, request.byte_size)
        return service_pb2.SystemSharedMemoryRegisterResponse()

    @unary_call
    def SystemSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: D102, N802
        self._control.shared_memory.unregister(request.name or None)
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    @unary_call
    def CudaSharedMemoryStatus(self, request: Any) -> Any:  # noqa: D102, N802
        raise UnsupportedRequest(NO_CUDA)

    CudaSharedMemoryRegister = CudaSharedMemoryUnregister = CudaSharedMemoryStatus

    @unary_call
    def TraceSetting(self, request: Any) -> Any:  # noqa: D102, N802
        traces = self._control.traces
        traces.update(request.model_name, {name: _trace_value(name, each) for name, each in request.settings.items()})
        response = service_pb2.TraceSettingResponse()
        for name, value in traces.get(request.model_name).items():
            response.settings[name].value.extend([value] if isinstance(value, str) else value)
        return response

    @unary_call
    def LogSettings(self, request: Any) -> Any:  # noqa: D102, N802
        logs = self._control.logs
        logs.update({name: _chosen(name, each) for name, each in request.settings.items()})
        response = service_pb2.LogSettingsResponse()
        for name, value in logs.get().items():
            setting = response.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        return response


def _trace_value(name: str, setting: Any) -> object:
    """The level as a list, any other setting as one value; None, which resets a setting, if there is no value."""
    values = list(setting.value)
    if not values or name == "trace_level":
        return values or None
    if len(values) > 1:
        raise RequestError(f"trace setting '{name:.80}' must have one value, got {len(values)}")
    return values[0]


def _parameters(request: Any) -> dict[str, object]:
    return {name: _chosen(name, value) for name, value in request.parameters.items()}


def _chosen(name: str, value: Any) -> object:
    choice = value.WhichOneof("parameter_choice")
    if choice is None:
        raise RequestError(f"parameter '{name:.80}' has no value")
    return getattr(value, choice)
