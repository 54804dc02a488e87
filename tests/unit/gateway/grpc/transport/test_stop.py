"""The end of a gRPC server, as clients see it who ask until then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.gateway.config.front_door import GrpcServerKind
from sluice.gateway.grpc.service import grpc_server
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.grpc.transport.server import GrpcServer
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.grpc.grpc_channel import refusal
from tests.unit.gateway.grpc.transport.serving import Serving
from tests.unit.gateway.grpc.transport.test_server import unary
from tests.unit.gateway.instant_gateway import identity, instant_gateway, until

STOPPING = grpc.StatusCode.UNAVAILABLE, "the server is stopping", {"retry-after": "1"}


async def echo(request: bytes, context: Any) -> bytes:
    return request


def test_a_stop_cancels_what_a_plain_function_has_not_answered_and_ignores_a_late_answer(serve: Serving) -> None:
    calls: list[Any] = []
    asked = asyncio.Event()
    cancelled: list[Any] = []

    def begin(request: bytes, call: Any) -> None:
        call.on_cancelled = lambda: cancelled.append(call)
        calls.append(call)
        asked.set()

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        reply = channel.unary_unary("/s/M", None, None)(b"")
        await asked.wait()
        await server.stop(None)
        assert cancelled == calls
        calls[0].finish(b"too late")
        assert (await refusal(reply))[0] is grpc.StatusCode.UNAVAILABLE

    serve(unary(begin), talk)


def test_streams_are_ended_when_what_came_has_been_answered(serve: Serving) -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            begun.set()
            await released.wait()
            await context.write(request)

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        idle = channel.stream_stream("/s/M", None, None)(None)
        busy = channel.stream_stream("/s/M", None, None)(None)
        await busy.write(b"last")
        await begun.wait()
        begun_s = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(server.stop(60))
        assert await refusal(idle.read()) == STOPPING
        released.set()
        assert await busy.read() == b"last"
        assert await refusal(busy.read()) == STOPPING
        await stopping
        assert asyncio.get_running_loop().time() - begun_s < 30

    serve({"M": grpc.stream_stream_rpc_method_handler(answer)}, talk)


def test_a_stream_that_the_client_has_ended_is_done_when_a_stop_comes_before_its_last_answer(serve: Serving) -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
        received = [request async for request in requests]
        begun.set()
        await released.wait()
        await context.write(b"".join(received))

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        stream = channel.stream_stream("/s/M", None, None)(iter([b"a", b"b"]))
        await begun.wait()
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0)
        released.set()
        assert [each async for each in stream] == [b"ab"]
        assert await stream.code() is grpc.StatusCode.OK
        await stopping

    serve({"M": grpc.stream_stream_rpc_method_handler(answer)}, talk)


def test_a_stream_of_inference_is_ended_with_its_last_answers_before_it(serve: Serving) -> None:
    served = instant_gateway(identity("m", ("x", DataType.FP32, (2,))))
    served.runtime.hold = True
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
    request = service_pb2.ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[bytes(8)])

    async def run() -> None:
        server, port = grpc_server(served.dataplane, served.control, "127.0.0.1", 0, 1 << 20, kind=serve.kind)
        await server.start()
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
            await stream.write(request)
            await served.runtime.arrived.wait()
            served.runtime.let_go()
            stopping = asyncio.create_task(server.stop(60))
            answer = await stream.read()
            assert (answer.error_message, answer.infer_response.model_name) == ("", "m")
            assert await refusal(stream.read()) == STOPPING
            await stopping

    asyncio.run(run())


def test_a_stop_ends_streams_that_are_open_and_a_second_one_does_nothing(serve: Serving) -> None:
    ended = asyncio.Event()

    async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                yield request
        finally:
            ended.set()

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        stream = channel.stream_stream("/s/M", None, None)(None)
        await stream.write(b"a")
        assert await stream.read() == b"a"
        await asyncio.gather(server.stop(0.05), server.stop(0.05))
        await ended.wait()
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.read()

    serve({"M": grpc.stream_stream_rpc_method_handler(echo)}, talk)


def test_a_handler_that_goes_on_after_a_stop_changes_nothing(serve: Serving) -> None:
    begun, ended, released = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()
    went_on: list[str] = []

    async def go_on() -> None:
        begun.release()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    async def answer(request: bytes, context: Any) -> bytes:
        await go_on()
        went_on.append("answer")
        ended.release()
        return request

    async def answers(requests: AsyncIterator[bytes], context: Any) -> None:
        await go_on()
        await context.write(b"too late")
        went_on.append(f"stream of {[request async for request in requests]}")
        ended.release()

    handlers = unary(answer) | {"S": grpc.stream_stream_rpc_method_handler(answers)}

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)(b"")
        stream = channel.stream_stream("/s/S", None, None)(None)
        await stream.write(b"a")
        await begun.acquire()
        await begun.acquire()
        await server.stop(None)
        for reply in (call, stream.read()):
            with pytest.raises(grpc.aio.AioRpcError):
                await reply
        released.set()
        await ended.acquire()
        await ended.acquire()

    serve(handlers, talk)
    assert sorted(went_on) == ["answer", "stream of []"]


def test_a_server_that_was_not_started_stops_at_once(serve: Serving) -> None:
    asyncio.run(serve.build({})[0].stop(None))


def test_clients_that_are_asked_to_go_get_all_answers_and_call_on_a_new_connection() -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    async def answer(request: bytes, context: Any) -> bytes:
        if request == b"slow":
            begun.set()
            await released.wait()
        return request

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        assert isinstance(server, Http2Server)
        call = channel.unary_unary("/s/M", None, None)
        slow = call(b"slow")
        await begun.wait()
        (first,) = server.connections
        server.front_door.ask_to_go(last=False)
        await until(lambda: not first.http2.awaits_ping)
        assert await call(b"next") == b"next"
        assert len(server.connections) == 2
        released.set()
        assert await slow == b"slow"
        await until(lambda: first not in server.connections)

    Serving(GrpcServerKind.SLUICE)(unary(answer), talk)
