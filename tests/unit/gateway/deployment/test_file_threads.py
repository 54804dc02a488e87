"""Work on files of others, which may hang."""

import asyncio
import threading

import pytest

from sluice.gateway.deployment import file_threads
from sluice.gateway.deployment.file_threads import FileThreads
from sluice.models.errors import RejectedError


def test_results_and_errors_come_back() -> None:
    async def run() -> None:
        threads = FileThreads()
        assert await threads.run(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)

    asyncio.run(run())


def test_work_that_hangs_holds_up_no_other_work_and_not_the_end() -> None:
    never = threading.Event()

    async def run() -> None:
        threads = FileThreads()
        hanging = [asyncio.create_task(threads.run(never.wait)) for _ in range(file_threads.MAX_THREADS - 1)]
        await asyncio.sleep(0)
        assert await threads.run(lambda: "read") == "read"
        assert await asyncio.to_thread(lambda: "other work") == "other work"
        threads.close()
        for each in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(each, RejectedError)
        with pytest.raises(RejectedError, match="the server is stopping"):
            await threads.run(lambda: 1)

    asyncio.run(run())  # ends although the work does not
    never.set()


def test_work_is_refused_while_too_much_of_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_threads, "MAX_THREADS", 1)
    monkeypatch.setattr(file_threads, "WAIT_TIMEOUT_S", 0)
    goes_on = threading.Event()

    async def run() -> None:
        threads = FileThreads()
        hanging = asyncio.create_task(threads.run(goes_on.wait))
        await asyncio.sleep(0)
        with pytest.raises(RejectedError, match="1 reads of model files have not ended yet"):
            await threads.run(lambda: 1)
        goes_on.set()
        assert await hanging

    asyncio.run(run())
