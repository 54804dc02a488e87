"""Threads for work on files of others: a share or a source may never answer."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from sluice.models.errors import RejectedError

MAX_THREADS = 32
"""Pieces of work at a time."""
WAIT_TIMEOUT_S = 60.0
"""Time for which a piece of work waits for others to end."""
STOPPING = "the server is stopping"

_Result = TypeVar("_Result")


class FileThreads:
    """Runs each piece of work in a thread of its own.

    Work that hangs holds up nothing but itself, not even the end of the process.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_THREADS)
        self._awaited: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Return the result of blocking `work`.

        Raises what it raises, and RejectedError while too many run, or once these threads are closed.
        """
        try:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await self._free.acquire()
        except TimeoutError as error:
            raise RejectedError(f"{MAX_THREADS} reads of model files have not ended yet") from error
        if self._closed:
            self._free.release()
            raise RejectedError(STOPPING)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Result] = loop.create_future()

        def report(give: Callable[[], None]) -> None:
            self._free.release()
            if not done.done():  # else nobody waits for it any more
                give()

        def attempt() -> None:
            give: Callable[[], None]
            try:
                result = work()
                give = partial(done.set_result, result)
            except BaseException as error:
                give = partial(done.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(report, give)

        threading.Thread(target=attempt, name="model files", daemon=True).start()
        self._awaited.add(done)
        try:
            return await done
        finally:
            self._awaited.discard(done)

    def close(self) -> None:
        """Wait for no work any more; what hangs ends with the process."""
        self._closed = True
        for done in self._awaited:
            if not done.done():
                done.set_exception(RejectedError(STOPPING))
