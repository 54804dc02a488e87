"""The client of gRPC against the server of grpcio, which others wrote."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from sluice.loadgen.records.record import Status
from sluice.loadgen.target.base import TargetRequest, TargetUnreachable
from sluice.loadgen.target.grpc import GrpcTarget
from sluice.models.errors import ConfigError
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.unit.loadgen.target.listener import Listener

Infer = Callable[[Any, grpc.ServicerContext], Any]
ROW = np.array([[1.0, 2.0]], np.float32)


def echo(request: Any, context: grpc.ServicerContext) -> Any:
    """Answers with the first input."""
    answer = service_pb2.ModelInferResponse(model_name=request.model_name)
    answer.outputs.add(name="y", datatype="FP32", shape=request.inputs[0].shape)
    answer.raw_output_contents.append(request.raw_input_contents[0])
    return answer


def metadata(request: Any, context: grpc.ServicerContext) -> Any:
    if request.name != "m":
        context.abort(grpc.StatusCode.NOT_FOUND, f"no model '{request.name}', nor ü")
    answer = service_pb2.ModelMetadataResponse(name="m")
    answer.inputs.add(name="x", datatype="FP32", shape=[-1, 2])
    return answer


@contextmanager
def server(
    infer: Infer = echo, address: str = "127.0.0.1:0", model_metadata: Infer = metadata, **options: int
) -> Iterator[str]:
    """A V2 server of grpcio; yields its URL."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            method, request.FromString, lambda answer: bytes(answer.SerializeToString())
        )
        for name, method, request in (
            ("ModelInfer", infer, service_pb2.ModelInferRequest),
            ("ModelMetadata", model_metadata, service_pb2.ModelMetadataRequest),
        )
    }
    named = [(f"grpc.{name}", value) for name, value in options.items()]
    running = grpc.server(ThreadPoolExecutor(8), options=named)
    running.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),)
    )
    port = running.add_insecure_port(address)
    running.start()
    try:
        yield f"grpc://127.0.0.1:{port}" if port > 1 else address.replace("unix:", "grpc+unix://")
    finally:
        running.stop(None).wait()


async def answers(
    url: str, requests: dict[int, TargetRequest], queries: int, **settings: Any
) -> tuple[GrpcTarget, Listener]:
    """Issue queries that take the requests in turn, and wait for all of them."""
    target, listener = GrpcTarget(url, **settings), Listener()
    await target.prepare(requests, listener, keep_answers=True)
    for query in range(queries):
        target.issue(query, query % len(requests))
    await listener.wait(queries)
    await target.close()
    return target, listener


def test_answers_carry_what_was_sent() -> None:
    rows = {k: TargetRequest("m", {"x": np.full((1, 2), k, np.float32)}) for k in range(3)}
    with server() as url:
        target, listener = asyncio.run(answers(url, rows, 30))
    for query, ended in listener.ended.items():
        assert ended.status is Status.OK
        assert target.decode(ended.answer, "y").tolist() == [[query % 3, query % 3]]
    with pytest.raises(ConfigError, match="--output z: not in the answers' raw contents"):
        target.decode(listener.ended[0].answer, "z")


def test_a_unix_socket_serves_as_well(tmp_path: Path) -> None:
    with server(address=f"unix:{tmp_path}/s") as url:
        _, listener = asyncio.run(answers(url, {0: TargetRequest("m", {"x": ROW})}, 3))
    assert [ended.status for ended in listener.ended.values()] == [Status.OK] * 3


def test_messages_larger_than_the_windows_of_http_2_arrive_whole() -> None:
    # Some megabytes each way: many frames, and windows that fill up and open again.
    large = np.random.default_rng(0).random((700, 1000), np.float32)
    with server(max_receive_message_length=1 << 24) as url:
        target, listener = asyncio.run(answers(url, {0: TargetRequest("m", {"x": large})}, 6))
    for ended in listener.ended.values():
        assert (target.decode(ended.answer, "y") == large).all()


def test_a_query_waits_where_the_server_takes_no_more_calls() -> None:
    with server(max_concurrent_streams=2) as url:
        _, listener = asyncio.run(answers(url, {0: TargetRequest("m", {"x": ROW})}, 40))
    assert [ended.status for ended in listener.ended.values()] == [Status.OK] * 40
    assert listener.waited == list(range(8, 40))  # four connections of two calls


def test_metadata_and_the_model_that_is_missing() -> None:
    with server() as url:
        target = GrpcTarget(url)
        assert asyncio.run(target.metadata("m")).inputs == (TensorSpec("x", DataType.FP32, (-1, 2)),)
        with pytest.raises(ConfigError, match=r"^--model n: NOT_FOUND no model 'n', nor ü$"):
            asyncio.run(target.metadata("n"))


def test_an_http_server_is_no_grpc_server() -> None:
    async def ask() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            await GrpcTarget(f"grpc://127.0.0.1:{port}").metadata("m")

    with pytest.raises(TargetUnreachable, match="not a gRPC server; for an HTTP port give http://host:port"):
        asyncio.run(ask())


def test_refusals_for_lack_of_room_are_no_errors() -> None:
    def refuse(request: Any, context: grpc.ServicerContext) -> Any:
        match request.model_name:
            case "full":
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
            case "later":
                context.set_trailing_metadata((("retry-after", "1"),))
                context.abort(grpc.StatusCode.UNAVAILABLE, "50 % of 2 are busy")
            case "broken":
                context.abort(grpc.StatusCode.INTERNAL, "no\nluck")

    requests = {k: TargetRequest(model, {"x": ROW}) for k, model in enumerate(("full", "later", "broken"))}
    with server(refuse) as url:
        _, listener = asyncio.run(answers(url, requests, 3))
    assert [(listener.ended[k].status, listener.ended[k].reason) for k in range(3)] == [
        (Status.SHED, "RESOURCE_EXHAUSTED: no room"),
        (Status.SHED, "UNAVAILABLE: 50 % of 2 are busy"),
        (Status.ERROR, "INTERNAL: no\nluck"),
    ]


def test_a_request_tells_its_options_and_some_ask_for_the_times_of_stages() -> None:
    seen: list[tuple[float, int, float, dict[str, str]]] = []

    def note(request: Any, context: grpc.ServicerContext) -> Any:
        sent = {name: str(value) for name, value in context.invocation_metadata()}
        given = request.parameters
        ahead_ms = given["start_after_ms"].double_param
        seen.append((given["slo_ms"].double_param, given["priority"].uint64_param, ahead_ms, sent))
        if "x-sluice-explain" in sent:
            context.set_trailing_metadata((("x-sluice-stages", "first;batch=1"),))
        return echo(request, context)

    asked = {0: TargetRequest("m", {"x": ROW}, 50.0, 2, start_after_ms=20)}
    settings = {"headers": [("Key", "secret")], "explain_every": 4}
    with server(note) as url:
        _, listener = asyncio.run(answers(url, asked, 8, **settings))
    assert [listener.ended[query].stages for query in range(8)] == ["first;batch=1", "", "", ""] * 2
    assert [given for *given, _ in seen] == [[50.0, 2, 20.0]] * 8
    for *_, sent in seen:
        assert (sent["key"], sent["triton-grpc-protocol-key"]) == ("secret", "secret")


def test_a_cancelled_call_ends_at_once_and_the_server_hears_of_it() -> None:
    begun, heard = threading.Event(), threading.Event()

    def stall(request: Any, context: grpc.ServicerContext) -> Any:
        if request.model_name == "slow":
            assert context.add_callback(heard.set)
            begun.set()
            assert heard.wait(60)
        return echo(request, context)

    async def run(url: str) -> Listener:
        target, listener = GrpcTarget(url), Listener()
        await target.prepare({0: TargetRequest("slow", {"x": ROW}), 1: TargetRequest("m", {"x": ROW})}, listener, False)
        target.issue(0, 0)
        target.issue(1, 1)
        await listener.wait(1)
        # A server never begins a call that is cancelled before its message is read.
        assert await asyncio.to_thread(begun.wait, 60)
        target.cancel(0)
        assert listener.ended[0].status is Status.CANCELLED
        target.cancel(0)
        target.cancel(1)
        assert await asyncio.to_thread(heard.wait, 60)
        target.issue(2, 1)
        await listener.wait(3)
        await target.close()
        return listener

    with server(stall) as url:
        listener = asyncio.run(run(url))
    assert [listener.ended[query].status for query in range(3)] == [Status.CANCELLED, Status.OK, Status.OK]


def test_queries_beyond_the_bound_are_dropped() -> None:
    gate = threading.Event()

    def stall(request: Any, context: grpc.ServicerContext) -> Any:
        assert gate.wait(60)
        return echo(request, context)

    async def run(url: str) -> Listener:
        target, listener = GrpcTarget(url, max_outstanding=3), Listener()
        await target.prepare({0: TargetRequest("m", {"x": ROW})}, listener, False)
        for query in range(5):
            target.issue(query, 0)
        assert {query: ended.reason for query, ended in listener.ended.items()} == {
            3: "3 queries were outstanding",
            4: "3 queries were outstanding",
        }
        gate.set()
        await listener.wait(5)
        await target.close()
        return listener

    with server(stall) as url:
        listener = asyncio.run(run(url))
    dropped = [query for query, ended in listener.ended.items() if ended.status is Status.DROPPED]
    assert dropped == [3, 4]


def test_calls_of_a_server_that_stops_fail_and_later_ones_find_none() -> None:
    gate = threading.Event()

    def stall(request: Any, context: grpc.ServicerContext) -> Any:
        gate.wait(60)
        return echo(request, context)

    async def run() -> Listener:
        listener = Listener()
        with server(stall) as url:
            target = GrpcTarget(url)
            await target.prepare({0: TargetRequest("m", {"x": ROW})}, listener, False)
            for query in range(6):
                target.issue(query, 0)
            threading.Timer(0.05, gate.set).start()
        await listener.wait(6)
        target.issue(6, 0)
        await listener.wait(7)
        await target.close()
        return listener

    listener = asyncio.run(run())
    assert {ended.status for ended in listener.ended.values()} == {Status.ERROR}
    assert listener.ended[6].reason.startswith("cannot connect: ")


@pytest.mark.parametrize(
    "answer",
    [
        service_pb2.ModelMetadataResponse(inputs=[{"name": "x", "datatype": "FP99", "shape": [2]}]),
        SimpleNamespace(SerializeToString=lambda: b"\xff"),
    ],
)
def test_metadata_that_cannot_be_read_is_refused(answer: Any) -> None:
    with (
        server(model_metadata=lambda request, context: answer) as url,
        pytest.raises(ConfigError, match="--target: unreadable model metadata: "),
    ):
        asyncio.run(GrpcTarget(url).metadata("m"))
