"""One worker process as the gateway starts it, hears of it and ends it."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sluice.models.errors import PartitionError
from sluice.mps.ipc.messages import FromWorker, RunBatch, StartWorker, WorkerReady
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.isolation_report import isolation_violations
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.child import launch_worker
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


@in_loop
async def test_one_whose_message_is_refused_is_killed() -> None:
    reasons: list[str] = []

    def refuse(message: FromWorker, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        raise PartitionError("it got ready twice")

    process = WorkerProcess(PARTITION, refuse, reasons.append)
    process.send(StartWorker(PARTITION, 1, 4096, ()))
    async with asyncio.timeout(60):
        await process.exited.wait()
    assert reasons == ["the worker sent a message that cannot be used: it got ready twice"]


@pytest.mark.parametrize("second", [1, 2])
@in_loop
async def test_a_worker_runs_no_batch_twice_and_none_out_of_order(second: int) -> None:
    reports: list[FromWorker] = []
    reasons: list[str] = []

    def take(message: FromWorker, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        reports.append(message)

    process = WorkerProcess(PARTITION, take, reasons.append)
    process.send(StartWorker(PARTITION, 1, 4096, ()))
    process.send(RunBatch(2, "m:1", ()))
    process.send(RunBatch(second, "m:1", ()))
    async with asyncio.timeout(60):
        await process.exited.wait()
    assert [type(report) for report in reports] == [WorkerReady]
    assert reasons == ["the worker exited with status 1"]


@in_loop
async def test_a_spare_worker_becomes_a_worker_with_all_its_threads_on_the_cores_of_its_partition() -> None:
    reports: list[FromWorker] = []
    reasons: list[str] = []

    def take(message: FromWorker, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        reports.append(message)
        process.close()

    spare = launch_worker(None)
    libraries = Path(f"/proc/{spare.pid}/maps")
    await asyncio.to_thread(until, lambda: "onnxruntime" in libraries.read_text())
    process = WorkerProcess(PARTITION, take, reasons.append, launch=lambda partition, stdout: spare)
    assert process.pid == spare.pid
    process.send(StartWorker(PARTITION, 1, 4096, ()))
    async with asyncio.timeout(60):
        await process.exited.wait()
    (ready,) = reports
    assert isinstance(ready, WorkerReady)
    assert ready.cores == (CORE,)
    assert isolation_violations(PARTITION, ready.evidence) == []
    assert reasons == ["the worker exited with status 0"]
