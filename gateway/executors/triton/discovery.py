"""The models that Triton servers hold when Sluice starts; each server is asked once."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.triton.client import LOAD_TIMEOUT_S, OPTIONS, PROBE_TIMEOUT_S
from sluice.gateway.executors.triton.errors import ServerLost
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.models.errors import ConfigError, UnsupportedModel
from sluice.models.repository.scan import BrokenEntry
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec

CONNECT_TIMEOUT_S = 10.0
"""Time for a server to get ready when Sluice starts."""
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Discovery:
    """The models of the servers: keys by server, and specs by key.

    `unreachable` servers have no entry; `broken` are models that cannot be served from a server, with reasons.
    """

    holds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    specs: dict[str, ModelSpec] = field(default_factory=dict)
    broken: dict[str, BrokenEntry] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    def may_hold(self, server: TritonSettings, specs: Mapping[str, ModelSpec]) -> dict[str, ModelSpec]:
        """The models, of all that are served, that a server holds, or should hold if it cannot be asked."""
        keys = self.holds.get(server.name)
        if keys is None:
            keys = tuple(key for key, spec in specs.items() if spec.name in (server.models or ()))
        return {key: specs[key] for key in keys}

    def unknown(self, servers: Iterable[TritonSettings], known: Collection[str]) -> list[BrokenEntry]:
        """The configured models of servers about which nothing is known, without the names in `known`."""
        broken = dict(self.broken)
        for server in servers:
            if (reason := self.unreachable.get(server.name)) is not None:
                broken |= {name: BrokenEntry(name, None, reason) for name in server.models or ()}
        return [each for name, each in broken.items() if name not in known]


NOTHING = Discovery()
"""The result without Triton servers."""


def discover(
    servers: Iterable[TritonSettings],
    largest_batch: Callable[[str], int],
    processes: Mapping[str, TritonProcess] = {},
) -> Discovery:
    """Ask all servers at once for the specs of their models, and wait for those that start; blocks.

    `largest_batch` gives the batch size that Sluice allows a model, by name. `processes` are those of the servers that
    were launched. Models that a server is to hold and does not are loaded.
    """
    asked = tuple(servers)
    found = Discovery()
    with ThreadPoolExecutor(max(1, len(asked)), "triton") as threads:
        for each in threads.map(lambda server: _ask(server, largest_batch, processes.get(server.name)), asked):
            found.holds.update(each.holds)
            found.specs.update({key: spec for key, spec in each.specs.items() if key not in found.specs})
            found.broken.update(each.broken)
            found.unreachable.update(each.unreachable)
    return found


def _ask(server: TritonSettings, largest_batch: Callable[[str], int], process: TritonProcess | None) -> Discovery:
    """The models that one server holds."""
    with grpc.insecure_channel(server.url, options=OPTIONS) as channel:
        service = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            if process is not None:
                _wait_started(service, process, server.start_timeout_s)
            else:
                _wait_ready(service, CONNECT_TIMEOUT_S)
            names = server.models if server.models is not None else _ready_models(service)
        except (grpc.RpcError, ServerLost) as error:
            return Discovery(unreachable={server.name: f"triton {server.name} at {server.url}: {_unreachable(error)}"})
        specs: dict[str, ModelSpec] = {}
        broken: dict[str, BrokenEntry] = {}
        for name in names:
            try:
                specs |= {spec.key: spec for spec in _specs(service, name, largest_batch(name))}
            except (grpc.RpcError, ConfigError) as error:
                reason = f"triton {server.name}: {name}: {_reason(error)}"
                broken[name] = BrokenEntry(name, None, reason, isinstance(error, UnsupportedModel))
        return Discovery({server.name: tuple(specs)}, specs, broken)


def _wait_started(service: Any, process: TritonProcess, timeout_s: float) -> None:
    """Wait for a server that was launched; raises ServerLost when it ends first."""
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(grpc.RpcError):
            if _wait_ready(service, _PAUSE_S):
                return
        if (reason := process.ended()) is not None:
            raise ServerLost(reason)
        if time.monotonic() >= deadline:
            raise ServerLost(f"not ready within {timeout_s:g} s")


def _wait_ready(service: Any, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        remaining = deadline - time.monotonic()
        try:
            if service.ServerReady(service_pb2.ServerReadyRequest(), timeout=max(remaining, _PAUSE_S)).ready:
                return True
        except grpc.RpcError as error:
            # A starting server refuses connections, so a refusal is no failure.
            if error.code() is not grpc.StatusCode.UNAVAILABLE or remaining <= 0:
                raise
        if remaining <= 0:
            return False
        time.sleep(_PAUSE_S)


def _ready_models(service: Any) -> list[str]:
    index = service.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=PROBE_TIMEOUT_S)
    return sorted({model.name for model in index.models})


def _specs(service: Any, name: str, largest_batch: int) -> list[ModelSpec]:
    """The spec of every version that is ready; raises ConfigError for a model that Sluice cannot serve."""
    try:
        metadata = service.ModelMetadata(service_pb2.ModelMetadataRequest(name=name), timeout=PROBE_TIMEOUT_S)
    except grpc.RpcError:
        service.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=name), timeout=LOAD_TIMEOUT_S)
        metadata = service.ModelMetadata(service_pb2.ModelMetadataRequest(name=name), timeout=PROBE_TIMEOUT_S)
    config = service.ModelConfig(service_pb2.ModelConfigRequest(name=name), timeout=PROBE_TIMEOUT_S).config
    if config.model_transaction_policy.decoupled:
        raise UnsupportedModel("a decoupled model may answer more than once, which is not supported")
    if config.HasField("sequence_batching"):
        raise UnsupportedModel("a sequence model keeps state between requests, which is not supported")
    rows = min(config.max_batch_size, largest_batch)
    inputs = tuple(_tensor(each, rows) for each in metadata.inputs)
    outputs = tuple(_tensor(each, rows) for each in metadata.outputs)
    return [
        ModelSpec(name, int(version), inputs, outputs, rows, metadata.platform or config.backend)
        for version in metadata.versions
    ]


def _tensor(tensor: Any, rows: int) -> TensorSpec:
    if tensor.datatype not in DataType.__members__:
        raise ConfigError(
            f"tensor '{tensor.name}' has datatype {tensor.datatype}, expected one of {', '.join(DataType)}"
        )
    shape = tuple(tensor.shape)
    return TensorSpec(tensor.name, DataType(tensor.datatype), shape[1:] if rows else shape)


def _unreachable(error: Exception) -> str:
    if not isinstance(error, grpc.RpcError):
        return str(error)
    reason = _reason(error)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        reason = "no answer in time"
    elif "Connection refused" in reason:
        reason = "connection refused"
    elif "SETTINGS frame" in reason:
        reason = "the server there does not speak gRPC"
    return f"{reason}; expected the port of Triton's gRPC service (8001 by default)"


def _reason(error: Exception) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.RpcError) else str(error)
