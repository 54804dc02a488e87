"""One worker process as the gateway starts it, hears of it and ends it."""

import asyncio
import os
from typing import Any

from sluice.mps.ipc.messages import FromWorker, StartWorker
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.process import WorkerProcess
from tests.support.gateway.processes import allowed_cores, until
from tests.support.gateway.workers import in_loop

CORE = available_cores()[-1]
PARTITION = CpuPartition("cpu0", (CORE,))


@in_loop
async def test_a_worker_keeps_to_its_cores_before_it_is_reported_anything() -> None:
    process = WorkerProcess(PARTITION, lambda message, fds: None, lambda reason: None)
    await asyncio.to_thread(until, lambda: allowed_cores(process.pid) == {str(CORE)})
    process.close()
    await process.exited.wait()


@in_loop
async def test_one_that_is_ended_as_it_answers_is_gone_without_an_error() -> None:
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
    reasons: list[str] = []

    def end(message: FromWorker, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        process.close()

    process = WorkerProcess(PARTITION, end, reasons.append)
    process.send(StartWorker(PARTITION, 1, 4096, ()))
    async with asyncio.timeout(60):
        await process.exited.wait()
    assert (reasons, troubles) == (["the worker exited with status 0"], [])
