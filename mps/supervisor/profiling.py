"""Measures a model on a partition of any kind, in a worker that is started as for serving."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec

from sluice.models.errors import BackendFailed, ControlFailed, PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.client_contexts import destroy_contexts
from sluice.mps.daemon.inventory import connect_control
from sluice.mps.ipc.messages import FromWorker, MeasureModel, ModelFile, ModelMeasured, StartWorker, WorkerReady
from sluice.mps.isolation.mps_environment import pipes_of
from sluice.mps.partitions.cpu import check_partitions
from sluice.mps.partitions.isolation_report import isolation_violations
from sluice.mps.partitions.partition import MpsPartition, Partition, ShareMode
from sluice.mps.supervisor.process import WorkerProcess, wait_for_exit

TIMEOUT_S = 900.0
"""Time limit of a whole measurement, loading and slow batches included."""
READY_S = 120.0
"""Time limit for the start of a worker without models."""
END_S = 10.0
"""Time for a worker to exit, which includes the run that it is in the middle of."""

_OUTPUT_BYTES = 1 << 16
"""Size of the output region, which stays unused."""
_STANDARD_ERROR = 2
_LATE = f"it takes more than {TIMEOUT_S:g} s; name fewer batch sizes"

_Answer = TypeVar("_Answer", WorkerReady, ModelMeasured)


def measure_on(partition: Partition, file: ModelFile, *, strict: bool = False) -> ModelMeasured:
    """Measure a model at the batch sizes of its menu, with the whole partition to itself; blocks until it is done.

    The evidence in the answer is for `partitions.isolation_report`, against `as_measured` of the partition. An MPS
    partition needs its daemon. Raises PartitionError for a partition that is not available or, when `strict`, not
    enforced, and BackendFailed for a model that does not run there.
    """
    check_partitions([partition])
    return asyncio.run(_measure(as_measured(partition), file, strict))


def time_on(partition: Partition, file: ModelFile) -> LatencyTable:
    """Time a model quickly and roughly, as a worker does that loads it; otherwise as `measure_on`."""
    check_partitions([partition])
    return asyncio.run(_time(partition, file))


def as_measured(partition: Partition) -> Partition:
    """The partition as it is measured: an elastic share, which may use more while others idle, gets its guarantee."""
    if isinstance(partition, MpsPartition) and partition.mode is ShareMode.ELASTIC:
        return msgspec.structs.replace(partition, mode=ShareMode.HARD)
    return partition


async def _measure(partition: Partition, file: ModelFile, strict: bool) -> ModelMeasured:
    async with _running(partition, file) as worker:
        ready = await worker.answer(WorkerReady, READY_S, f"its worker is not ready within {READY_S:g} s")
        if strict:
            _refuse(partition, isolation_violations(partition, ready.evidence))
        worker.process.send(MeasureModel(file))
        measured = await worker.answer(ModelMeasured, TIMEOUT_S, _LATE)
    if measured.measurement is None:
        raise worker.failed(measured.error)
    if strict:
        _refuse(partition, isolation_violations(partition, measured.evidence))
    return measured


async def _time(partition: Partition, file: ModelFile) -> LatencyTable:
    async with _running(partition, file, file) as worker:
        (model,) = (await worker.answer(WorkerReady, TIMEOUT_S, _LATE)).models
    if model.table is None:
        raise worker.failed(model.error)
    return model.table


def _refuse(partition: Partition, reasons: list[str]) -> None:
    if reasons:
        raise PartitionError(f"partition {partition.name} is not enforced: {'; '.join(reasons)}")


class _Worker:
    """A worker that measures `file`, and the queue of its reports."""

    def __init__(self, partition: Partition, file: ModelFile) -> None:
        self._partition = partition
        self._file = file
        self._said: asyncio.Queue[FromWorker | str] = asyncio.Queue()
        self.process = WorkerProcess(partition, self._take, self._said.put_nowait, stdout=_STANDARD_ERROR)

    async def answer(self, form: type[_Answer], timeout_s: float, late: str) -> _Answer:
        """Return the next message; raises BackendFailed for another type and, with `late`, when none comes in time."""
        try:
            async with asyncio.timeout(timeout_s):
                said = await self._said.get()
        except TimeoutError:
            raise self.failed(late) from None
        if not isinstance(said, form):
            raise self.failed(said if isinstance(said, str) else f"the worker sent {type(said).__name__}")
        return said

    def failed(self, reason: str) -> BackendFailed:
        """The error to raise."""
        return BackendFailed(f"{self._file.path}: cannot be measured on {self._partition.name}: {reason}")

    async def end(self) -> None:
        """End it after the current run, by force if necessary; the daemon may have other clients."""
        self.process.close()
        if await wait_for_exit([self.process.exited], END_S):
            return
        if isinstance(self._partition, MpsPartition):
            with suppress(ControlFailed):
                channel = MpsChannel(pipes_of(self._partition))
                control = await asyncio.to_thread(connect_control, channel)
                await destroy_contexts(control, worker=self.process.pid)
        self.process.kill("it did not exit in time")
        await wait_for_exit([self.process.exited], END_S)

    def _take(self, message: FromWorker, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        self._said.put_nowait(message)


@asynccontextmanager
async def _running(partition: Partition, file: ModelFile, *models: ModelFile) -> AsyncIterator[_Worker]:
    """A worker on the partition that has been ordered to load `models`."""
    worker = _Worker(partition, file)
    try:
        worker.process.send(StartWorker(partition, 1, _OUTPUT_BYTES, models))
        yield worker
    finally:
        await worker.end()
