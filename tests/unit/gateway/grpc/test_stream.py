"""Streams of requests, and the services that come with the protocol's own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.front_door import GrpcServerKind
from sluice.gateway.grpc.stream import STREAM_REQUESTS
from sluice.gateway.protocol.answer import Answer
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.grpc.grpc_channel import converse, converse_on_channel, refusal
from tests.unit.gateway.instant_gateway import TIMEOUT_S, InstantGateway, identity, instant_gateway

PB = service_pb2
DATA = np.array([1, 2], np.float32).tobytes()


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(identity("m", ("x", DataType.FP32, (2,))))


def request(id: str = "", name: str = "m") -> Any:
    tensor = PB.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
    return PB.ModelInferRequest(model_name=name, id=id, inputs=[tensor], raw_input_contents=[DATA])


def stream(
    served: InstantGateway, kind: GrpcServerKind, talk: Callable[[Any], Awaitable[None]], **metadata: str
) -> None:
    """Let `talk` use a stream."""

    async def with_stub(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
        await talk(stub.ModelStreamInfer(metadata=tuple(metadata.items()), timeout=20))

    converse(served, with_stub, kind)


def test_each_request_of_a_stream_gets_one_answer_and_a_bad_one_does_not_end_it(
    served: InstantGateway, kind: GrpcServerKind
) -> None:
    async def talk(call: Any) -> None:
        for each in (request("1"), request("2", "other"), request("3")):
            await call.write(each)
        await call.done_writing()
        replies = {reply.infer_response.id: reply async for reply in call}
        assert {id: reply.error_message for id, reply in replies.items()} == {
            "1": "",
            "2": "Request for unknown model: 'other' is not found",
            "3": "",
        }
        answer = replies["3"].infer_response
        assert (answer.model_name, list(answer.raw_output_contents)) == ("m", [DATA])
        assert await call.code() is grpc.StatusCode.OK

    stream(served, kind, talk)


def test_requests_of_a_stream_run_at_the_same_time_up_to_a_bound(served: InstantGateway, kind: GrpcServerKind) -> None:
    served.runtime.hold = True

    async def talk(call: Any) -> None:
        async def send() -> None:
            for number in range(STREAM_REQUESTS + 5):
                await call.write(request(str(number)))
            await call.done_writing()

        sending = asyncio.create_task(send())
        async with asyncio.timeout(TIMEOUT_S):
            while len(served.runtime.submitted) < STREAM_REQUESTS:
                served.runtime.arrived.clear()
                await served.runtime.arrived.wait()
        assert len(served.runtime.submitted) == STREAM_REQUESTS
        served.runtime.let_go()
        replies = [reply async for reply in call]
        await sending
        assert len({reply.infer_response.id for reply in replies}) == STREAM_REQUESTS + 5

    stream(served, kind, talk)


def test_a_stream_may_ask_to_end_with_the_status_of_its_first_error(
    served: InstantGateway, kind: GrpcServerKind
) -> None:
    async def talk(call: Any) -> None:
        served.runtime.hold = True
        await call.write(request("1"))
        await served.runtime.arrived.wait()
        await call.write(request("2", "other"))
        code, details, _ = await refusal(call.read())
        assert (code, details) == (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'other' is not found")
        await asyncio.wait_for(served.runtime.gone.wait(), TIMEOUT_S)
        assert served.runtime.cancelled == [1]

    stream(served, kind, talk, triton_grpc_error="true")


def test_cancelling_a_stream_cancels_its_requests(served: InstantGateway, kind: GrpcServerKind) -> None:
    served.runtime.hold = True

    async def talk(call: Any) -> None:
        for id in ("1", "2"):
            served.runtime.arrived.clear()
            await call.write(request(id))
            await served.runtime.arrived.wait()
        call.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            while len(served.runtime.cancelled) < 2:
                served.runtime.gone.clear()
                await served.runtime.gone.wait()
        assert sorted(served.runtime.cancelled) == [1, 2]

    stream(served, kind, talk)


def test_answers_of_a_stream_carry_other_facts_as_parameters(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(call: Any) -> None:
        asking = request()
        asking.parameters["triton_enable_empty_final_response"].bool_param = True
        await call.write(asking)
        parameters = (await call.read()).infer_response.parameters
        assert parameters["triton_final_response"].bool_param is True
        assert parameters["x-sluice-request"].string_param == "sluice-1"
        served.runtime.answer = Answer(Outcome.REJECTED_QUEUE_FULL, "8 requests wait", 5)
        await call.write(request())
        reply = await call.read()
        assert reply.error_message == "Exceeds maximum queue size: 8 requests wait"
        assert reply.infer_response.parameters["x-sluice-request"].string_param == "sluice-2"

    stream(served, kind, talk)


def test_the_mark_of_the_final_response_must_be_a_bool(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(stub: Any) -> None:
        asking = request()
        asking.parameters["triton_enable_empty_final_response"].string_param = "yes"
        code, details, _ = await refusal(stub.ModelInfer(asking))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == "parameter 'triton_enable_empty_final_response' must be true or false"

    converse(served, talk, kind)


def test_health_tells_whether_the_server_is_ready(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(channel: grpc.aio.Channel) -> None:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        for service in ("", "inference.GRPCInferenceService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == serving
        code, details, _ = await refusal(stub.Check(health_pb2.HealthCheckRequest(service="other")))
        assert (code, details) == (grpc.StatusCode.NOT_FOUND, "unknown service 'other'")
        served.registry.start_draining()
        reply = await stub.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        code, _, _ = await refusal(stub.Watch(health_pb2.HealthCheckRequest()).read())
        assert code is grpc.StatusCode.UNIMPLEMENTED

    converse_on_channel(served, talk, kind)


def test_reflection_lists_the_services(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def asked() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService")

    async def talk(channel: grpc.aio.Channel) -> None:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, described = [reply async for reply in stub.ServerReflectionInfo(asked())]
        assert {service.name for service in listed.list_services_response.service} == {
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        assert described.file_descriptor_response.file_descriptor_proto

    converse_on_channel(served, talk, kind)
