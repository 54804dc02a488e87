"""The calls beside inference, and who may make them."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.grpc.grpc_channel import converse, converse_on_channel, refusal
from tests.unit.gateway.instant_gateway import InstantGateway, identity, instant_gateway

PB = service_pb2
MODEL = identity("m", ("x", DataType.FP32, (2,)))


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(MODEL)


def test_configuration_statistics_and_index(served: InstantGateway) -> None:
    async def talk(stub: Any) -> None:
        config = (await stub.ModelConfig(PB.ModelConfigRequest(name="m"))).config
        assert (config.name, config.max_batch_size, list(config.input[0].dims)) == ("m", 8, [2])
        (entry,) = (await stub.ModelStatistics(PB.ModelStatisticsRequest(name="m"))).model_stats
        assert (entry.name, entry.version, entry.inference_stats.success.count) == ("m", "1", 0)
        index = (await stub.RepositoryIndex(PB.RepositoryIndexRequest())).models
        assert [(each.name, each.version, each.state) for each in index] == [
            ("broken", "", "UNAVAILABLE"),
            ("m", "1", "READY"),
        ]
        ready = await stub.RepositoryIndex(PB.RepositoryIndexRequest(ready=True))
        assert [each.name for each in ready.models] == ["m"]

    converse(served, talk)


@pytest.mark.parametrize(
    ("call", "request_message", "code", "problem"),
    [
        ("ModelConfig", PB.ModelConfigRequest(name="other"), grpc.StatusCode.NOT_FOUND, "is not found"),
        (
            "ModelStatistics",
            PB.ModelStatisticsRequest(name="m", version="abc"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "model version 'abc' must be a number",
        ),
        (
            "RepositoryIndex",
            PB.RepositoryIndexRequest(repository_name="mine"),
            grpc.StatusCode.UNIMPLEMENTED,
            "'repository_name' specification is not supported",
        ),
        (
            "RepositoryModelLoad",
            PB.RepositoryModelLoadRequest(model_name="m"),
            grpc.StatusCode.UNAVAILABLE,
            "explicit model load / unload is not allowed if polling is enabled",
        ),
        (
            "SystemSharedMemoryRegister",
            PB.SystemSharedMemoryRegisterRequest(name="r", key="/k", byte_size=2**63),
            grpc.StatusCode.INVALID_ARGUMENT,
            "'byte_size' must be a whole number of bytes below 2**63",
        ),
        (
            "CudaSharedMemoryRegister",
            PB.CudaSharedMemoryRegisterRequest(),
            grpc.StatusCode.UNIMPLEMENTED,
            "CUDA shared memory is not supported",
        ),
        (
            "TraceSetting",
            PB.TraceSettingRequest(settings={"trace_rate": PB.TraceSettingRequest.SettingValue(value=["1", "2"])}),
            grpc.StatusCode.INVALID_ARGUMENT,
            "trace setting 'trace_rate' must have one value, got 2",
        ),
        (
            "LogSettings",
            PB.LogSettingsRequest(settings={"log_info": PB.LogSettingsRequest.SettingValue()}),
            grpc.StatusCode.INVALID_ARGUMENT,
            "parameter 'log_info' has no value",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(
    served: InstantGateway, call: str, request_message: Any, code: grpc.StatusCode, problem: str
) -> None:
    async def talk(stub: Any) -> None:
        got, details, _ = await refusal(getattr(stub, call)(request_message))
        assert got is code
        assert problem in details

    converse(served, talk)


def with_key(talk: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    """Talk to a server of which some groups are restricted."""
    groups = (ApiGroup.INFERENCE, ApiGroup.HEALTH)
    restrictions = Restrictions([RestrictedSettings(groups, "admin-key", "s3cret")])
    converse_on_channel(instant_gateway(MODEL, restrictions=restrictions), talk)


def test_a_restricted_group_wants_its_key_as_metadata() -> None:
    async def talk(channel: grpc.aio.Channel) -> None:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        expected = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'"
        bad = (("triton-grpc-protocol-admin-key", "guess"),)
        for call in (
            stub.ServerLive(PB.ServerLiveRequest()),
            stub.ModelInfer(PB.ModelInferRequest(model_name="m"), metadata=bad),
            stub.ModelStreamInfer(metadata=bad).read(),
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()),
        ):
            assert (await refusal(call))[:2] == (grpc.StatusCode.UNAVAILABLE, expected)
        good = (("triton-grpc-protocol-admin-key", "s3cret"),)
        assert (await stub.ServerLive(PB.ServerLiveRequest(), metadata=good)).live
        assert (await stub.ServerMetadata(PB.ServerMetadataRequest())).name == "sluice"

    with_key(talk)
