"""Calls that a front end passes on, from its end to the handlers of the gateway's process."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from sluice.gateway.grpc.relayed import CALL, CallRelay, RelayedCalls
from sluice.gateway.grpc.transport.call import Aborted
from sluice.models.errors import BackendUnavailable


class Context:
    """The context of a call in the front end."""

    method = "/service/Method"

    def __init__(self) -> None:
        self.trailing: object = None

    def invocation_metadata(self) -> list[tuple[str, object]]:
        return [("name", "value"), ("data-bin", b"\0")]

    def time_remaining(self) -> float | None:
        return 5.0

    def set_trailing_metadata(self, metadata: object) -> None:
        self.trailing = metadata

    async def abort(self, *status: object) -> None:
        raise Aborted(*status)


Handler = Callable[[bytes, Any], Coroutine[Any, Any, object]]


class Bench:
    """A relay to handlers in the same process."""

    def __init__(self, **handlers: Handler | Callable[[bytes, Any], None]) -> None:
        self.calls = RelayedCalls(self._application)
        self.others = 0
        made = {
            name: grpc.unary_unary_rpc_method_handler(handler, None, lambda answer: answer * 2)
            for name, handler in handlers.items()
        }
        self.calls.add_registered_method_handlers("service", made)
        self.relay = CallRelay(self.exchange)
        self.leaves = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.others += 1

    async def exchange(self, body: bytes) -> bytes:
        parts = [{"type": "http.request", "body": part, "more_body": True} for part in (body[:3], body[3:])]
        parts.append({"type": "http.request", "body": b""})

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop(0)
            await self.leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        await self.calls({"headers": [(CALL, b"1")]}, receive, send)
        if not self.sent:
            raise BackendUnavailable("no answer")
        start, end = self.sent
        assert start["status"] == 200
        answer: bytes = end["body"]
        return answer


def test_a_call_has_its_metadata_its_time_and_its_answer() -> None:
    async def answer(message: bytes, context: Any) -> bytes:
        assert context.method == "/service/Method"
        assert context.invocation_metadata() == [("name", "value")]
        assert 4 < context.time_remaining() <= 5
        context.set_trailing_metadata([("x-cost", "7")])
        return message

    async def run() -> None:
        context = Context()
        assert await Bench(Method=answer).relay.answer(b"\0\1", context) == b"\0\1\0\1"
        assert context.trailing == (("x-cost", "7"),)

    asyncio.run(run())


def test_a_plain_handler_ends_its_call_itself() -> None:
    def begin(message: bytes, call: Any) -> None:
        asyncio.get_running_loop().call_soon(call.finish, message)

    async def run() -> None:
        assert await Bench(Method=begin).relay.answer(b"abc", Context()) == b"abc"

    asyncio.run(run())


async def _aborts(message: bytes, context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such model", (("retry-after", "1"),))


async def _fails(message: bytes, context: Any) -> None:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("handlers", "status"),
    [
        ({"Method": _aborts}, (grpc.StatusCode.NOT_FOUND, "no such model", (("retry-after", "1"),))),
        ({"Method": _fails}, (grpc.StatusCode.UNKNOWN, "Unexpected <class 'KeyError'>: 'x'", ())),
        ({"Other": _fails}, (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ())),
    ],
)
def test_a_status_is_passed_back(handlers: dict[str, Handler], status: tuple[object, ...]) -> None:
    async def run() -> None:
        with pytest.raises(Aborted) as caught:
            await Bench(**handlers).relay.answer(b"", Context())
        assert caught.value.args == status

    asyncio.run(run())


def test_a_client_that_leaves_cancels_the_call() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def waits(message: bytes, context: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def run() -> None:
        bench = Bench(Method=waits)
        asking = asyncio.create_task(bench.relay.answer(b"", Context()))
        await begun.wait()
        bench.leaves.set()
        with pytest.raises(Aborted, match="no answer"):
            await asking
        await cancelled.wait()

    asyncio.run(run())


def test_other_requests_go_to_the_application() -> None:
    async def run() -> None:
        bench = Bench()
        await bench.calls({"headers": [(b"host", b"me")]}, None, None)
        assert bench.others == 1

    asyncio.run(run())
