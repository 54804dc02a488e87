"""Questions to models that say by themselves whether they are ready."""

import asyncio
import itertools
from collections.abc import Callable

TIME_LIMIT_S = 5.0
"""A model that has not answered by then is not ready; Triton's limit."""

Send = Callable[[int, str], frozenset[str]]
"""Sends the question of that number about a model to the partitions that it returns."""


class _Question:
    """A question that was not answered by all partitions."""

    def __init__(self, answer: asyncio.Future[bool]) -> None:
        self.answer = answer
        self.missing: set[str] = set()


class Readiness:
    """The open questions: one a model at a time, whose answer all get that ask meanwhile."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, _Question] = {}
        self._by_model: dict[str, asyncio.Future[bool]] = {}

    async def ask(self, model: str, send: Send) -> bool:
        """Return whether all partitions that hold a model say that it is ready; False if one does not answer."""
        answer = self._by_model.get(model)
        if answer is None:
            answer = self._begin(model, send)
        return await asyncio.shield(answer)

    def reported(self, partition: str, number: int, *, is_ready: bool) -> None:
        """Record the answer of a partition."""
        question = self._open.get(number)
        if question is None or question.answer.done():
            return
        question.missing.discard(partition)
        if not is_ready or not question.missing:
            question.answer.set_result(is_ready)

    def _begin(self, model: str, send: Send) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        number = next(self._numbers)
        question = self._open[number] = _Question(answer)
        self._by_model[model] = answer
        question.missing |= send(number, model)
        late = loop.call_later(TIME_LIMIT_S, _settle, answer, False)

        def end(_: asyncio.Future[bool]) -> None:
            late.cancel()
            del self._open[number], self._by_model[model]

        answer.add_done_callback(end)
        if not question.missing:
            answer.set_result(True)
        return answer


def _settle(answer: asyncio.Future[bool], value: bool) -> None:
    if not answer.done():
        answer.set_result(value)
