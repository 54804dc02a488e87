"""Requests over gRPC that differ only in their numbers."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from msgspec.structs import replace
from tritonclient.grpc import service_pb2

from sluice.gateway.config.front_door import GrpcServerKind
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.grpc.grpc_channel import converse, converse_on_channel, refusal
from tests.unit.gateway.instant_gateway import ARRIVED_NS, InstantGateway, identity, instant_gateway

PB = service_pb2
METHOD = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(identity("m", ("x", DataType.FP32, (2,))), identity("pair", *PAIR))


PAIR = (("x", DataType.INT8, (1,)), ("y", DataType.INT64, (1,)))


def request(*values: float, rows: int = 1, **fields: Any) -> Any:
    message = PB.ModelInferRequest(model_name="m", **fields)
    message.inputs.add(name="x", datatype="FP32", shape=[rows, 2])
    message.raw_input_contents.append(np.array(values, np.float32).tobytes())
    return message


def numbers(reply: Any) -> list[float]:
    values: list[float] = np.frombuffer(reply.raw_output_contents[0], np.float32).tolist()
    return values


def test_each_of_many_alike_is_answered_with_its_own_numbers(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(stub: Any) -> None:
        replies = [await stub.ModelInfer(request(number, 2 * number)) for number in range(5)]
        assert [numbers(reply) for reply in replies] == [[number, 2 * number] for number in range(5)]
        for reply in replies:
            del reply.raw_output_contents[:]
            assert reply == PB.ModelInferResponse(
                model_name="m",
                model_version="1",
                outputs=[PB.ModelInferResponse.InferOutputTensor(name="x", datatype="FP32", shape=[1, 2])],
            )

    converse(served, talk, kind)
    assert [each["deadline_ns"] - ARRIVED_NS for each in served.runtime.submitted] == [10**9] * 5
    assert served.runtime.released == 5


def test_the_metadata_of_the_client_key_tells_clients_apart(kind: GrpcServerKind) -> None:
    tensor = ("x", DataType.FP32, (2,))
    served = instant_gateway(replace(identity("m", tensor), client_key="x-tenant"))
    clients = ("a", "b", "", 200 * "c")

    async def talk(stub: Any) -> None:
        for client in clients:
            await stub.ModelInfer(request(1, 2), metadata=(("other", "z"), ("x-tenant", client)))
        await stub.ModelInfer(request(1, 2))

        async def requests() -> AsyncIterator[Any]:
            for _ in range(2):
                yield request(1, 2)

        async for reply in stub.ModelStreamInfer(requests(), metadata=(("x-tenant", "d"),)):
            assert not reply.error_message

    converse(served, talk, kind)
    assert [each["client"] for each in served.runtime.submitted] == ["a", "b", "", 128 * "c", "", "d", "d"]


def test_what_differs_beside_the_numbers_is_heeded(served: InstantGateway, kind: GrpcServerKind) -> None:
    many = [float(number) for number in range(100)]

    async def talk(stub: Any) -> None:
        for _ in range(3):
            assert numbers(await stub.ModelInfer(request(1, 2))) == [1, 2]
            assert numbers(await stub.ModelInfer(request(*many, rows=50, id="a"))) == many
            assert (await stub.ModelInfer(request(1, 2, id="b"))).id == "b"
            marked = request(3, 4)
            marked.parameters["triton_enable_empty_final_response"].bool_param = True
            reply = await stub.ModelInfer(marked)
            assert (numbers(reply), reply.parameters["triton_final_response"].bool_param) == ([3, 4], True)
            hurried = await stub.ModelInfer(request(5, 6), timeout=50)
            assert numbers(hurried) == [5, 6]
            wide = request(1, 2)
            wide.inputs[0].shape[:] = [2, 1]
            assert (await refusal(stub.ModelInfer(wide)))[0] is grpc.StatusCode.INVALID_ARGUMENT
            short = request(1)
            assert (await refusal(stub.ModelInfer(short)))[0] is grpc.StatusCode.INVALID_ARGUMENT

    served = instant_gateway(identity("m", ("x", DataType.FP32, (2,)), max_batch_size=64, slo_ms=60_000))
    converse(served, talk, kind)
    assert [each["id"] for each in served.runtime.submitted] == ["", "a", "b", "", ""] * 3
    budgets_ns = [each["deadline_ns"] - ARRIVED_NS for each in served.runtime.submitted]
    assert [budget_ns == 60 * 10**9 for budget_ns in budgets_ns] == [True, True, True, True, False] * 3
    assert all(budget_ns < 55 * 10**9 for budget_ns in budgets_ns[4::5])


def test_the_time_of_the_network_is_taken_off_the_deadline_of_every_call(kind: GrpcServerKind) -> None:
    served = instant_gateway(identity("m", ("x", DataType.FP32, (2,)), slo_ms=60_000), network_ms=20_000)

    async def talk(stub: Any) -> None:
        for _ in range(3):
            await stub.ModelInfer(request(1, 2), timeout=50)
            await stub.ModelInfer(request(1, 2))

    converse(served, talk, kind)
    budgets_ns = [each["deadline_ns"] - ARRIVED_NS for each in served.runtime.submitted]
    assert all(25 * 10**9 < budget_ns < 35 * 10**9 for budget_ns in budgets_ns[::2]), "clients round deadlines up"
    assert budgets_ns[1::2] == [40 * 10**9] * 3


def test_several_inputs_go_their_own_ways(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(stub: Any) -> None:
        for number in range(3):
            message = PB.ModelInferRequest(model_name="pair")
            message.inputs.add(name="x", datatype="INT8", shape=[1, 1])
            message.inputs.add(name="y", datatype="INT64", shape=[1, 1])
            message.raw_input_contents.append(np.int8(number).tobytes())
            message.raw_input_contents.append(np.int64(-number).tobytes())
            reply = await stub.ModelInfer(message)
            assert [len(raw) for raw in reply.raw_output_contents] == [1, 8]
            assert np.frombuffer(reply.raw_output_contents[1], np.int64).tolist() == [-number]

    converse(served, talk, kind)


def test_fields_may_come_in_any_order_and_what_is_no_message_is_reported(
    served: InstantGateway, kind: GrpcServerKind
) -> None:
    whole = request(1, 2).SerializeToString()
    raw = PB.ModelInferRequest(raw_input_contents=request(7, 8).raw_input_contents).SerializeToString()
    rest = whole[: -len(raw)]
    unknown = b"\xfa\x7f\x08" + np.array([3, 4], np.float32).tobytes()

    async def talk(channel: grpc.aio.Channel) -> None:
        infer = channel.unary_unary(METHOD, None, PB.ModelInferResponse.FromString)
        for _ in range(3):
            assert numbers(await infer(raw + rest)) == [7, 8]
            assert numbers(await infer(rest + raw + unknown)) == [7, 8]
            assert numbers(await infer(whole)) == [1, 2]
        with pytest.raises(grpc.aio.AioRpcError, match="not a ModelInferRequest") as caught:
            await infer(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    converse_on_channel(served, talk, kind)


def test_a_model_that_is_gone_or_another_one_by_now_is_not_taken_for_the_one_it_was(
    served: InstantGateway, kind: GrpcServerKind
) -> None:
    async def talk(stub: Any) -> None:
        for _ in range(2):
            assert (await stub.ModelInfer(request(1, 2))).model_version == "1"
        latest = replace(identity("m", ("x", DataType.FP32, (-1,))), version=2)
        served.registry.serve("m", [latest])
        served.inventory.partition_ready("cpu0", ["m:2", "pair:1"], {})
        for _ in range(2):
            assert (await stub.ModelInfer(request(1, 2))).model_version == "2"
        served.registry.set_unavailable("m", {})
        assert (await refusal(stub.ModelInfer(request(1, 2))))[0] is grpc.StatusCode.NOT_FOUND

    converse(served, talk, kind)
