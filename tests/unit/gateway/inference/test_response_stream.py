"""The responses to a request of a decoupled model, as they are read."""

import asyncio
from collections.abc import Callable

import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.status_settings import TRITON_STATUSES
from sluice.gateway.inference.response_stream import ResponseStream
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.tensors.responses import ModelResponse, ResponseRouter
from sluice.models.errors import BackendFailed


class Bench:
    """A stream, and the events that its responses are released, and its request is cancelled."""

    def __init__(self) -> None:
        self.now_ns = 5
        self.stream = ResponseStream(TRITON_STATUSES, lambda: self.now_ns)
        self.events: list[str] = []
        self.stream.cancel = lambda: self.events.append("cancelled")

    def response(self, name: str = "", *, is_final: bool = False) -> ModelResponse:
        error = BackendFailed(name) if name else None
        return ModelResponse({}, error, is_final, lambda: self.events.append(f"{name or 'mark'} released"))

    def put(self, name: str = "", *, is_final: bool = False) -> None:
        self.stream.put(self.response(name, is_final=is_final))

    def end(self, outcome: Outcome = Outcome.COMPLETED, reason: str = "") -> None:
        self.stream.end(Answer(outcome, reason))

    async def read(self) -> list[str]:
        names = []
        while (response := await self.stream.next()) is not None:
            names.append(str(response.error or "mark"))
            response.release()
        return names


def test_responses_are_read_in_order_up_to_the_final_one() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.put(name)
    bench.put(is_final=True)
    assert asyncio.run(bench.read()) == ["a", "b", "mark"]
    bench.end()
    bench.stream.close()
    assert bench.events == ["a released", "b released", "mark released"]
    assert bench.stream.first_ns == 5


def test_the_reader_waits_for_responses() -> None:
    async def test() -> None:
        bench = Bench()
        reading = asyncio.create_task(bench.read())
        for name in ("a", "b"):
            await asyncio.sleep(0)
            assert not reading.done()
            bench.put(name, is_final=name == "b")
        assert await reading == ["a", "b"]

    asyncio.run(test())


def test_a_request_that_fails_ends_with_its_error_after_its_responses() -> None:
    bench = Bench()
    bench.put("a")
    bench.end(Outcome.FAILED_WORKER_LOST, "killed")

    async def test() -> None:
        response = await bench.stream.next()
        assert str(response and response.error) == "a"
        with pytest.raises(BackendFailed, match="the worker died with the request: killed"):
            await bench.stream.next()
        assert await bench.stream.next() is None

    asyncio.run(test())


def test_a_failure_after_the_final_response_is_not_the_clients() -> None:
    bench = Bench()
    bench.put("a", is_final=True)
    bench.end(Outcome.FAILED_BACKEND, "late")
    assert asyncio.run(bench.read()) == ["a"]


def test_a_reader_that_leaves_cancels_the_request_and_releases_what_waits_and_what_comes() -> None:
    bench = Bench()
    bench.put("a")
    bench.stream.close()
    bench.put("b")
    bench.end(Outcome.CANCELLED_CLIENT)
    assert bench.events == ["a released", "cancelled", "b released"]


@pytest.mark.parametrize("end", [lambda bench: bench.put(is_final=True), lambda bench: bench.end()])
def test_a_request_that_is_over_is_not_cancelled(end: Callable[[Bench], None]) -> None:
    bench = Bench()
    end(bench)
    bench.stream.close()
    assert "cancelled" not in bench.events


def test_a_response_to_a_request_that_is_not_open_is_released() -> None:
    bench, router = Bench(), ResponseRouter()
    router.open(7, bench.stream.put)
    router.route(7, bench.response("a"))
    router.close(7)
    router.route(7, bench.response("b"))
    assert bench.events == ["b released"]


def test_the_longest_tail_is_remembered_and_fades() -> None:
    router = ResponseRouter()
    assert router.tail_ns("m:1") == 0
    for tail_ns in (1000, 10):
        router.note_tail("m:1", tail_ns)
    assert router.tail_ns("m:1") == 990
    router.forget("m:1")
    assert router.tail_ns("m:1") == 0
