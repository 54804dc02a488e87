"""The gRPC server by itself, on a real channel."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from sluice.gateway.config.front_door import GrpcServerKind
from sluice.gateway.grpc.transport.grpcio.server import GrpcioServer
from sluice.gateway.grpc.transport.server import GrpcServer
from tests.unit.gateway.grpc.transport.serving import Handlers, Serving, waiting_threads


async def give_up(call: Any, message: bytes, reached: Callable[[], bool]) -> None:
    """Wait in vain for the answer to a call that has reached its server, for which some need more time than others."""
    for timeout_s in (0.2, 0.8, 3.2, 12.8, 51.2):
        if not reached():
            with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                await call(message, timeout=timeout_s)
    assert reached()


def unary(behaviour: Callable[[bytes, Any], Awaitable[bytes] | None]) -> Handlers:
    return {"M": grpc.unary_unary_rpc_method_handler(behaviour)}


def test_calls_that_come_together_are_taken_in_one_turn_of_the_loop(serve: Serving) -> None:
    turns: list[int] = []
    turn = 0

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def answer(request: bytes, context: Any) -> bytes:
        turns.append(turn)
        return request

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        assert await call(b"warm") == b"warm"
        counting = asyncio.create_task(count())
        answers = await asyncio.gather(*(call(b"%d" % number) for number in range(200)))
        counting.cancel()
        assert answers == [b"%d" % number for number in range(200)]

    serve(unary(answer), talk)
    assert len(turns) == 201
    assert len(set(turns)) < 100


def test_a_call_that_the_client_cancels_or_waits_for_too_long_is_cancelled(serve: Serving) -> None:
    begun = {request: asyncio.Event() for request in (b"late", b"given up")}
    cancelled = {request: asyncio.Event() for request in begun}

    async def answer(request: bytes, context: Any) -> bytes:
        begun[request].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled[request].set()
            raise
        return b""

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        await give_up(call, b"late", begun[b"late"].is_set)
        await cancelled[b"late"].wait()
        given_up = call(b"given up")
        await begun[b"given up"].wait()
        given_up.cancel()
        await cancelled[b"given up"].wait()

    serve(unary(answer), talk)


def test_time_metadata_and_status_go_both_ways(serve: Serving) -> None:
    seen: dict[str, Any] = {}

    async def answer(request: bytes, context: Any) -> bytes:
        seen["remaining"] = context.time_remaining()
        seen["metadata"] = dict(context.invocation_metadata())["x-mine"]
        context.set_trailing_metadata([("x-note", "this")])
        if request == b"refused":
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such thing: ä", (("retry-after", "3"),))
        return b"answer"

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        done = call(b"", metadata=(("x-mine", "yes"),))
        assert await done == b"answer"
        assert (await done.trailing_metadata())["x-note"] == "this"
        assert seen == {"remaining": None, "metadata": "yes"}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"refused", metadata=(("x-mine", "no"),), timeout=100)
        assert 90 < seen["remaining"] < 102
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "there is no such thing: ä"
        reported: Any = caught.value.trailing_metadata()
        assert reported["retry-after"] == "3"

    serve(unary(answer), talk)


def test_streams_are_answered_message_by_message(serve: Serving) -> None:
    async def doubled(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield 2 * request

    async def written(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(3 * request)

    handlers: Handlers = {
        "Doubled": grpc.stream_stream_rpc_method_handler(doubled),
        "Written": grpc.stream_stream_rpc_method_handler(written),
    }

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        for method, answers in (("Doubled", [b"aa", b"bb"]), ("Written", [b"aaa", b"bbb"])):
            call = channel.stream_stream(f"/s/{method}", None, None)(iter([b"a", b"b"]))
            assert [each async for each in call] == answers

    serve(handlers, talk)


def test_a_handler_that_fails_and_an_unknown_method_end_their_call_only(
    serve: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        if request == b"bad":
            raise ValueError("the model is on fire")
        return request

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        with pytest.raises(grpc.aio.AioRpcError, match="the model is on fire") as caught:
            await call(b"bad")
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/s/None", None, None)(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await call(b"good") == b"good"

    with caplog.at_level(logging.CRITICAL, "sluice.gateway.grpc.transport.server"):
        serve(unary(answer), talk)


@pytest.mark.parametrize(("grace_s", "ends"), [(60, True), (0.05, False)])
def test_a_stop_lets_calls_end_and_cancels_those_that_do_not(serve: Serving, grace_s: float, ends: bool) -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    async def answer(request: bytes, context: Any) -> bytes:
        begun.set()
        await released.wait()
        return request

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)(b"ends")
        await begun.wait()
        stopping = asyncio.create_task(server.stop(grace_s))
        await asyncio.sleep(0)
        if ends:
            released.set()
            assert await call == b"ends"
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        await stopping

    serve(unary(answer), talk)


def test_a_port_that_cannot_be_bound_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        GrpcioServer(()).add_port("192.0.2.1:1")


def test_a_plain_function_ends_its_call_itself_and_hears_of_one_that_is_cancelled(serve: Serving) -> None:
    calls: dict[bytes, Any] = {}
    asked, cancelled = asyncio.Event(), asyncio.Event()

    def begin(request: bytes, call: Any) -> None:
        if request == b"bad":
            raise ValueError("the model is on fire")
        if request not in calls:
            call.on_cancelled = cancelled.set
            calls[request] = call
        asked.set()

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        answered = call(b"answered")
        await asked.wait()
        calls[b"answered"].set_trailing_metadata([("x-note", "this")])
        calls[b"answered"].finish(b"later")
        assert await answered == b"later"
        assert (await answered.trailing_metadata())["x-note"] == "this"
        with pytest.raises(grpc.aio.AioRpcError, match="the model is on fire"):
            await call(b"bad")
        assert not cancelled.is_set()
        await give_up(call, b"late", lambda: b"late" in calls)
        await cancelled.wait()
        assert [calls[b"answered"].cancelled, calls[b"late"].cancelled] == [False, True]

    serve(unary(begin), talk)


def test_a_plain_function_hears_of_clients_that_give_up_without_a_deadline_and_what_it_does_then_is_ignored(
    serve: Serving,
) -> None:
    calls: list[Any] = []
    asked, cancelled = asyncio.Semaphore(0), asyncio.Semaphore(0)

    def begin(request: bytes, call: Any) -> None:
        call.on_cancelled = cancelled.release
        calls.append(call)
        asked.release()

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        replies = [call(b"") for _ in range(20)]
        for _ in replies:
            await asked.acquire()
        for reply in replies:
            reply.cancel()
        calls[0].finish(b"before it is known")
        for _ in replies[1:]:
            await cancelled.acquire()
        assert [each.cancelled for each in calls] == [False] + [True] * 19
        calls[1].finish(b"too late")
        calls[1].end(grpc.StatusCode.OK)

    serve(unary(begin), talk)


def test_a_call_ends_once(serve: Serving) -> None:
    def begin(request: bytes, call: Any) -> None:
        call.finish(b"first")
        call.finish(b"second")
        call.end(grpc.StatusCode.NOT_FOUND, "third")

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        assert [await call(b"") for _ in range(3)] == [b"first"] * 3

    serve(unary(begin), talk)


def test_an_answer_that_cannot_be_serialized_ends_its_call(serve: Serving, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: bytes, context: Any) -> None:
        return None

    def serialize(answer: None) -> bytes:
        raise TypeError("None is no message")

    handlers: Handlers = {"M": grpc.unary_unary_rpc_method_handler(answer, None, serialize)}

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match="None is no message") as caught:
            await channel.unary_unary("/s/M", None, None)(b"")
        assert caught.value.code() is grpc.StatusCode.UNKNOWN

    with caplog.at_level(logging.CRITICAL, "sluice.gateway.grpc.transport.server"):
        serve(handlers, talk)


def test_messages_above_the_limit_are_refused_however_small_they_are_compressed(serve: Serving) -> None:
    def begin(request: bytes, call: Any) -> None:
        call.finish(b"%d" % len(request))

    async def run() -> None:
        server, port = serve.build(unary(begin), max_message_bytes=1 << 20)
        await server.start()
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/s/M", None, None)
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate):
                assert await call(bytes(1 << 20), compression=compression) == b"1048576"
                with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
                    await call(bytes(8 << 20), compression=compression)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await server.stop(None)

    asyncio.run(run())


@pytest.mark.parametrize("size", [70_000, 3_000_000])
def test_large_messages_go_both_ways(serve: Serving, size: int) -> None:
    async def twice(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
            yield request

    handlers = unary(lambda request, call: call.finish(request))
    handlers["S"] = grpc.stream_stream_rpc_method_handler(twice)
    message = bytes(range(250)) * (size // 250)

    async def run() -> None:
        server, port = serve.build(handlers)
        await server.start()
        options = (("grpc.max_receive_message_length", -1),)
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            call = channel.unary_unary("/s/M", None, None)
            assert await asyncio.gather(*(call(message) for _ in range(3))) == [message] * 3
            answers = [each async for each in channel.stream_stream("/s/S", None, None)(iter([message] * 3))]
            assert answers == [message] * 6
        await server.stop(None)

    asyncio.run(run())


def test_calls_that_are_refused_and_those_without_a_message_end_with_a_status(serve: Serving) -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        return request

    async def run() -> None:
        server, port = serve.build(
            unary(answer), lambda method, metadata: "" if ("key", "k") in tuple(metadata) else "it is locked"
        )
        await server.start()
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/s/M", None, None)
            assert await call(b"a", metadata=(("key", "k"),)) == b"a"
            with pytest.raises(grpc.aio.AioRpcError, match="it is locked") as caught:
                await call(b"a")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError, match="requires exactly one request message"):
                await channel.stream_unary("/s/M", None, None)(iter(()), metadata=(("key", "k"),))
        await server.stop(None)

    asyncio.run(run())


def test_a_callback_of_an_event_may_fail_once_and_the_next_call_is_answered(
    serve: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    def begin(request: bytes, call: Any) -> None:
        def fail() -> None:
            cancelled.set()
            raise ValueError("nobody expects this")

        if request == b"good":
            call.finish(request)
        elif not begun.is_set():
            call.on_cancelled = fail
            begun.set()

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        await give_up(call, b"never", begun.is_set)
        await cancelled.wait()
        assert await call(b"good") == b"good"

    serve(unary(begin), talk)
    grpcio = serve.kind is GrpcServerKind.GRPCIO
    what = "an event of a gRPC call" if grpcio else "the cancellation of a gRPC call"
    assert [record.getMessage() for record in caplog.records] == [f"{what} could not be handled"]


CLIENT = """
import grpc, sys
call = grpc.insecure_channel(sys.argv[1]).unary_unary("/s/M", None, None)
print(call(b"for ever"))
"""


def test_a_client_that_is_killed_has_its_calls_cancelled(serve: Serving) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def answer(request: bytes, context: Any) -> bytes:
        if request == b"next":
            return request
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async def run() -> None:
        server, port = serve.build(unary(answer))
        address = f"127.0.0.1:{port}"
        await server.start()
        async with asyncio.timeout(60):
            client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, address)
            await begun.wait()
            client.kill()
            await client.wait()
            await cancelled.wait()
            async with grpc.aio.insecure_channel(address) as channel:
                assert await channel.unary_unary("/s/M", None, None)(b"next") == b"next"
        await server.stop(None)

    asyncio.run(run())
    assert waiting_threads() == []
