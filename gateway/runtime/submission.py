"""A request that is under way."""

import asyncio
from collections.abc import Callable
from functools import partial

from sluice.gateway.observability.explanation import explain
from sluice.gateway.observability.metrics import PipelineMeter
from sluice.gateway.observability.trace import Trace
from sluice.gateway.protocol.answer import Answer

OnAnswered = Callable[[Answer], object]
"""Gets the answer to a request; the last one to get it releases it."""


class Submission:
    """A request that was handed to the runtime: its number, its trace and, later, its answer. `meter` counts it.

    Most requests are answered by a callback: a future for each would take a tenth of the time of a request.
    """

    __slots__ = ("_loop", "_then", "answer", "meter", "request", "trace")

    def __init__(self, request: int, loop: asyncio.AbstractEventLoop, trace: Trace, meter: PipelineMeter) -> None:
        self.request = request
        self.trace = trace
        self.meter = meter
        self.answer: Answer | None = None
        self._loop = loop
        self._then: tuple[OnAnswered, ...] = ()

    @property
    def given_id(self) -> str:
        """The id that the server gave to the request; "" if the client gave one."""
        trace = self.trace
        return "" if trace.client_id else trace.id

    def explanation(self) -> list[tuple[str, str]]:
        """The explanation of the answered request, as headers."""
        return explain(self.trace, self.trace.ended_ns).headers()

    def then(self, callback: OnAnswered, on_relay: Callable[[], object] | None = None) -> None:
        """Call back with the answer when there is one, after the callbacks of earlier calls.

        `on_relay` is for requests of front ends (see `Submitted`).
        """
        if self.answer is None:
            self._then += (callback,)
        else:
            self._loop.call_soon(callback, self.answer)

    @property
    def future(self) -> asyncio.Future[Answer]:
        """A new future of the answer. An answer to one that is cancelled is released."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.answer is None:
            self.then(partial(_settle, future))
        else:
            future.set_result(self.answer)
        return future

    def settle(self, answer: Answer) -> None:
        """Give the answer to those who wait for it. What they raise goes to the handler of the loop."""
        self.answer = answer
        callbacks, self._then = self._then, ()
        for callback in callbacks:
            try:
                callback(answer)
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": f"the answer to request {self.request} could not be taken", "exception": error}
                )


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if future.done():
        answer.release()
    else:
        future.set_result(answer)
