"""The responses to one request of a decoupled model, as transports read them."""

import asyncio
from collections import deque
from collections.abc import Callable

from sluice.batcher.interface.outcome import ANSWERED
from sluice.gateway.config.status_settings import StatusSettings
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.status import outcome_error
from sluice.gateway.tensors.responses import ModelResponse
from sluice.models.errors import ServingError


class ResponseStream:
    """The responses in their order: `next` waits for each, and gives None after the last one.

    The reader releases them. While it holds many, or does not read, the model waits. `close` must follow; it calls
    `cancel` if the request goes on. `given_id` is the id that the server gave to the request, "" if the client gave
    one, and `first_ns` the time of the first response by `clock`, 0 before it.
    """

    def __init__(self, statuses: StatusSettings, clock: Callable[[], int]) -> None:
        self.first_ns = 0
        self._clock = clock
        self.given_id = ""
        self.cancel: Callable[[], object] = lambda: None
        self._statuses = statuses
        self._waiting: deque[ModelResponse] = deque()
        self._arrived = asyncio.Event()
        self._is_over = self._is_closed = False
        self._error: ServingError | None = None

    def put(self, response: ModelResponse) -> None:
        """Take a response."""
        self.first_ns = self.first_ns or self._clock()
        if self._is_closed or self._is_over:
            response.release()
            return
        self._is_over = response.is_final
        self._waiting.append(response)
        self._arrived.set()

    def end(self, answer: Answer) -> None:
        """Take the end of the request, which is an error if there was no final response."""
        answer.release()
        if answer.outcome not in ANSWERED and not self._is_over:
            self._error = outcome_error(answer.outcome, answer.reason, answer.retry_after_s, self._statuses)
        self._is_over = True
        self._arrived.set()

    async def next(self) -> ModelResponse | None:
        """The next response, to be released; None after the last one. Raises ServingError if the request failed."""
        while not self._waiting:
            if self._is_over:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        """Read no more: responses that come are dropped, and a request that goes on is cancelled."""
        self._is_closed = True
        while self._waiting:
            self._waiting.popleft().release()
        if not self._is_over:
            self._is_over = True
            self.cancel()
