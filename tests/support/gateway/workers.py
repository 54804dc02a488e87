"""A minimal gateway that drives real worker processes, for tests."""

import asyncio
import gc
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime

from sluice.models.pipelines.pipeline import Confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array, decode_bytes, encode_bytes, numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import (
    BatchReport,
    CallModel,
    InputTensor,
    LoadResult,
    ModelFile,
    OutputTensor,
    ReadinessReport,
    Segment,
    WorkerReady,
)
from sluice.mps.partitions.cpu import default_partitions
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.supervisor import Supervisor
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.gateway.processes import memory_files

_ENDS = [{"name": name, "data_type": "TYPE_FP32", "dims": [8]} for name in "xy"]
_HELD = """
from pathlib import Path
from time import sleep

here = Path(__file__).parent

def wait():
    (here / "waiting").touch()
    while not (here / "go").exists():
        sleep(0.001)

def load(config):
    if {at_load}:
        wait()

def infer(inputs):
    if inputs["x"].any():  # none of those that warm it
        wait()
    return {{"y": inputs["x"]}}
"""


class Gateway:
    """A minimal gateway around a supervisor: one region of inputs, a queue of reports, and numbers for batches."""

    def __init__(self, specs: list[WorkerSpec], ready_timeout_s: float = 60.0) -> None:
        self.reports: asyncio.Queue[WorkerReady | LoadResult | BatchReport | str] = asyncio.Queue()
        self.numbers = itertools.count(1)
        self.workers: dict[str, WorkerProcess] = {}
        self.output_regions: dict[str, int] = {}
        self.supervisor = Supervisor(specs, self, ready_timeout_s)
        self.inputs = Region.create("sluice-test-inputs", 1 << 20)
        self.input_region = self.supervisor.share_region(self.inputs)

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        self.workers[partition] = worker
        self.output_regions[partition] = output_region
        self.reports.put_nowait(ready)

    def worker_lost(self, partition: str, reason: str) -> None:
        self.workers.pop(partition, None)
        self.reports.put_nowait(f"{partition}: {reason}")

    def runs_retry(self, partition: str) -> bool:
        return False

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None:
        self.workers[partition] = worker
        self.output_regions[partition] = output_region
        self.reports.put_nowait(ready)

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None:
        self.reports.put_nowait(f"{worker.partition.name} replaced: {reason}")

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        self.reports.put_nowait(msgspec.structs.replace(model, evidence=None))

    def model_unloaded(self, partition: str, key: str) -> None:
        self.reports.put_nowait(f"{partition}: {key} unloaded")

    def model_called(self, partition: str, worker: WorkerProcess, call: CallModel, fd: int) -> None:
        os.close(fd)

    def readiness_reported(self, partition: str, report: ReadinessReport) -> None: ...

    def message(
        self,
        partition: str,
        worker: WorkerProcess,
        message: BatchReport,
    ) -> None:
        self.reports.put_nowait(message)

    async def next(self) -> Any:
        async with asyncio.timeout(60):
            return await self.reports.get()

    def place(self, array: Array, offset: int = 0, segment_bytes: int | None = None) -> InputTensor:
        """Copy an input `x` into the input region, in segments with gaps between them."""
        is_bytes = array.dtype == np.object_
        data = encode_bytes(array)[0] if is_bytes else array.tobytes()
        segments = []
        for start in range(0, len(data), segment_bytes or len(data)):
            part = data[start : start + (segment_bytes or len(data))]
            self.inputs.view[offset : offset + len(part)] = part
            segments.append(Segment(self.input_region, offset, len(part)))
            offset += len(part) + 64
        datatype = DataType.BYTES if is_bytes else DataType.FP32
        return InputTensor("x", datatype, array.shape, tuple(segments))

    def read(self, tensor: OutputTensor) -> npt.NDArray[Any]:
        memory = self.supervisor.region(tensor.region).view[tensor.offset : tensor.offset + tensor.nbytes]
        if tensor.datatype is DataType.BYTES:
            return decode_bytes(memory, tensor.shape)
        return np.frombuffer(memory, numpy_dtype(tensor.datatype)).reshape(tensor.shape).copy()


@asynccontextmanager
async def serving(*specs: WorkerSpec) -> AsyncIterator[Gateway]:
    """A gateway with ready workers, drained at the end of the block."""
    gateway = Gateway(list(specs))
    gateway.supervisor.start()
    try:
        for _ in specs:
            assert isinstance(await gateway.next(), WorkerReady)
        yield gateway
    finally:
        await gateway.supervisor.drain()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def partition(index: int = 0) -> CpuPartition:
    return default_partitions()[index]


def model(
    path: Path, key: str = "m:1", menu: tuple[int, ...] = (1, 4), confidences: tuple[tuple[str, Confidence], ...] = ()
) -> ModelFile:
    return ModelFile(key, str(path), "onnxruntime", menu, batchable=True, confidences=confidences)


def held(directory: Path, key: str, at_load: bool = False) -> ModelFile:
    """A model of 8 columns that waits at its load or run for a file `go` beside it, and creates `waiting` meanwhile."""
    directory.mkdir()
    (directory / "model.py").write_text(_HELD.format(at_load=at_load))
    config = {"name": "held", "max_batch_size": 4, "input": _ENDS[:1], "output": _ENDS[1:]}
    return ModelFile(key, str(directory / "model.py"), "python", (1,), batchable=True, config=json.dumps(config))


def worker(*models: ModelFile, index: int = 0, output_bytes: int = 1 << 20) -> WorkerSpec:
    return WorkerSpec(partition(index), models, output_bytes)


def rows(count: int, width: int = 8) -> npt.NDArray[np.float32]:
    return np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)


def direct(path: Path, x: Array) -> npt.NDArray[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def own_memory_files() -> list[str]:
    """The memory files of this process after a garbage collection."""
    gc.collect()
    return memory_files(os.getpid(), "sluice")
