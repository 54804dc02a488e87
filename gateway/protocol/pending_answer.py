"""A request whose answer is to come."""

import asyncio
from collections.abc import Callable
from functools import partial

from sluice.gateway.protocol.answer import Answer

OnAnswered = Callable[[Answer], object]
"""Gets the answer to a request; the last one to get it releases it."""


class RelayNeeded(Exception):
    """Only the gateway's process can answer a request: the front end has to pass it on."""


class PendingAnswer:
    """A request that was submitted: its number, and later its answer.

    Most requests are answered by a callback: a future for each would take a tenth of the time of a request.
    """

    __slots__ = ("_loop", "_relayed", "_then", "answer", "request")

    def __init__(self, request: int, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.answer: Answer | None = None
        self._loop = loop
        self._then: tuple[OnAnswered, ...] = ()
        self._relayed: Callable[[], object] | None = None

    def then(self, callback: OnAnswered, relayed: Callable[[], object] | None = None) -> None:
        """Call back with the answer when there is one, after the callbacks of earlier calls.

        `relayed` is called instead if the request has to be passed on.
        """
        if self.answer is None:
            self._then += (callback,)
            self._relayed = relayed
        else:
            self._loop.call_soon(callback, self.answer)

    @property
    def future(self) -> asyncio.Future[Answer]:
        """A new future of the answer, or of RelayNeeded. An answer to one that is cancelled is released."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.answer is None:
            self.then(partial(_settle, future), partial(_pass_on, future))
        else:
            future.set_result(self.answer)
        return future

    def settle(self, answer: Answer) -> None:
        """Give the answer to those who wait for it. What they raise goes to the handler of the loop."""
        self.answer = answer
        callbacks, self._then, self._relayed = self._then, (), None
        for callback in callbacks:
            try:
                callback(answer)
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": f"the answer to request {self.request} could not be taken", "exception": error}
                )

    def relay(self) -> None:
        """Have the request passed on: there will be no answer here."""
        relayed, self._then, self._relayed = self._relayed, (), None
        if relayed is not None:
            relayed()


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if future.done():
        answer.release()
    else:
        future.set_result(answer)


def _pass_on(future: asyncio.Future[Answer]) -> None:
    if not future.done():
        future.set_exception(RelayNeeded())
