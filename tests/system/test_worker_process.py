"""One worker process as the gateway starts it, hears of it and ends it."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.mps.ipc.messages import BatchFinished, FromWorker, RunBatch, StartWorker, WorkerReady
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.isolation_report import isolation_violations
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.process import StartedProcess, WorkerProcess, start_process
from tests.support.gateway.processes import allowed_cores, until
from tests.support.gateway.workers import in_loop

CORE = available_cores()[-1]
PARTITION = CpuPartition("cpu0", (CORE,))
STRAYING = """
import socket, sys
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import BatchFinished, ToWorker

channel = Channel(socket.socket(fileno=int(sys.argv[1])), ToWorker)
for _ in range(2):
    next(channel.receive(wait=True))
for batch in map(int, sys.argv[2:]):
    channel.send(BatchFinished(batch, 1, 2, (), -1))
channel.receive(wait=True)
"""


def straying(answers: tuple[int, ...]) -> StartedProcess:
    """A process that answers the given batches when it was sent two."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-c", STRAYING, str(theirs.fileno()), *map(str, answers)]
        return StartedProcess(subprocess.Popen(command, pass_fds=[theirs.fileno()]), ours)


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


@pytest.mark.parametrize(
    ("answers", "delivered", "refused"),
    [
        ((7, 7), [7], "batch 7; expected one of the batches sent to it: [8]"),
        ((8, 7, 8), [8, 7], "batch 8; expected one of the batches sent to it: none"),
        ((9, 7), [], "batch 9; expected one of the batches sent to it: [7, 8]"),
    ],
)
@in_loop
async def test_an_answer_to_a_batch_that_is_not_due_is_not_delivered_and_ends_the_worker(
    answers: tuple[int, ...], delivered: list[int], refused: str
) -> None:
    batches: list[int] = []
    reasons: list[str] = []

    def take(message: FromWorker, fds: tuple[int, ...]) -> None:
        assert isinstance(message, BatchFinished)
        batches.append(message.batch)

    process = WorkerProcess(PARTITION, take, reasons.append, started=straying(answers))
    for batch in (7, 8):
        process.send(RunBatch(batch, "m:1", ()))
    async with asyncio.timeout(60):
        await process.exited.wait()
    assert (batches, reasons) == (
        delivered,
        [f"the worker sent a message that cannot be used: an answer to {refused}"],
    )


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

    spare = start_process(None)
    libraries = Path(f"/proc/{spare.process.pid}/maps")
    await asyncio.to_thread(until, lambda: "onnxruntime" in libraries.read_text())
    process = WorkerProcess(PARTITION, take, reasons.append, started=spare)
    assert process.pid == spare.process.pid
    process.send(StartWorker(PARTITION, 1, 4096, ()))
    async with asyncio.timeout(60):
        await process.exited.wait()
    (ready,) = reports
    assert isinstance(ready, WorkerReady)
    assert ready.cores == (CORE,)
    assert isolation_violations(PARTITION, ready.evidence) == []
    assert reasons == ["the worker exited with status 0"]
