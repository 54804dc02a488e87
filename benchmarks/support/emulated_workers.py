"""Emulated accelerators behind worker servers: one process serves many endpoints, each with a worker that sleeps.

All that is between the gateway and the device is real: sessions, leases, loads, the files of models and tensors, over
TCP. In place of the worker process there is a device of its own time: a batch begins when it has come and the one
before has ended, and ends after the latency of the model's table for its rows. Its times are exact, although the
machine is busy and timers are late. Models are those of the backend `timed`, and echo.

Run as a program, it writes the addresses into a file once all listen: `{"urls": ["127.0.0.1:40001", ...]}`.
"""

import argparse
import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple, cast

import uvloop

from sluice.gateway.front_door.listener import listen
from sluice.gateway.tensors.input_slots import InputSlot
from sluice.gateway.worker_protocol.framing import views_of
from sluice.gateway.worker_protocol.messages import Fault, RemoteModel, ServedWorker, SessionTensor
from sluice.gateway.worker_server.host import BatchOwner, HostEvents, WorkerHost
from sluice.gateway.worker_server.server import BACKLOG, WorkerServer
from sluice.gateway.worker_server.settings import ArenaLimits, WorkerSettings
from sluice.models.backends.requests import RequestPart
from sluice.models.sequence_batching import SequenceRow
from sluice.models.triton_config.timed_file import TimedFile, read_timed_file
from sluice.models.units import NS_PER_S
from sluice.mps.ipc.messages import BatchFinished, LoadResult, OutputTensor
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition


class _Batch(NamedTuple):
    number: int
    model: str
    rows: int
    inputs: Sequence[SessionTensor]
    slot: InputSlot | None
    owner: BatchOwner
    arrived_ns: int


class EmulatedHost:
    """The device of one worker server, in place of a `WorkerHost`."""

    def __init__(self, events: HostEvents) -> None:
        self.models: dict[str, RemoteModel] = {}
        self.loaded: dict[str, LoadResult] = {}
        self.reason = ""
        self.on_idle: Callable[[], None] | None = None
        self._events = events
        self._files: dict[str, TimedFile] = {}
        self._loop = asyncio.get_running_loop()
        self._numbers = 0
        self._waiting: deque[_Batch] = deque()
        self._running: _Batch | None = None
        self._started_ns = self._free_ns = 0

    @property
    def worker(self) -> ServedWorker:
        """The worker, which is always up."""
        return ServedWorker(os.getpid(), (0,), Evidence(cores=(0,)), tuple(self.loaded.values()))

    @property
    def open_batches(self) -> int:
        """The batches that have no answer."""
        return len(self._waiting) + (self._running is not None)

    async def close(self) -> None:
        """Nothing has to be ended."""

    def load(self, model: RemoteModel, path: str) -> None:
        """Load a timed model at once."""
        file = read_timed_file(Path(path))
        self.models[model.key], self._files[model.key] = model, file
        self.loaded[model.key] = LoadResult(model.key, file.table)
        self._events.model_loaded(self.loaded[model.key])

    def unload(self, key: str) -> None:
        """Forget a model."""
        for held in (self.models, self.loaded, self._files):
            held.pop(key, None)
        self._events.model_unloaded(key)

    def ask_ready(self, number: int, key: str) -> bool:
        """Timed models do not say whether they are ready."""
        del number, key
        return False

    def place(self, model: str, nbytes: int) -> InputSlot:
        """Memory for the inputs of a batch."""
        return InputSlot(0, 0, memoryview(bytearray(nbytes)), model, True)

    def free(self, slot: InputSlot) -> None:
        """The memory goes with its last view."""

    def submit(
        self,
        model: str,
        inputs: Sequence[SessionTensor],
        slot: InputSlot | None,
        deadline_in_ns: int,
        requests: tuple[RequestPart, ...],
        sequences: tuple[SequenceRow, ...],
        owner: BatchOwner,
    ) -> int:
        """Run a batch after those that wait."""
        del deadline_in_ns, requests, sequences
        self._numbers += 1
        if model not in self.loaded:
            owner.refused(Fault.RESOURCES, f"the worker does not hold {model}")
            return self._numbers
        rows = inputs[0].shape[0] if self.models[model].batchable else 1
        self._waiting.append(_Batch(self._numbers, model, rows, inputs, slot, owner, monotonic_ns()))
        if self._running is None:
            self._run_next()
        return self._numbers

    def withdraw(self, number: int) -> None:
        """Take a batch back if it has not begun."""
        for batch in self._waiting:
            if batch.number == number:
                self._waiting.remove(batch)
                batch.owner.withdrawn()
                return

    def _run_next(self) -> None:
        batch = self._running = self._waiting.popleft()
        self._started_ns = max(batch.arrived_ns, self._free_ns)
        self._free_ns = self._started_ns + self._files[batch.model].table.latency_ns(batch.rows)
        self._loop.call_at(self._free_ns / NS_PER_S, self._ended)

    def _ended(self) -> None:
        batch, started_ns, ended_ns = self._running, self._started_ns, self._free_ns
        assert batch is not None
        self._running = None
        if self._waiting:
            self._run_next()
        views = views_of(batch.inputs, batch.slot.view) if batch.slot is not None else ()
        names = [output.name for output in self._files[batch.model].outputs]
        outputs = tuple(
            OutputTensor(name, each.datatype, each.shape, 0, 0, each.nbytes)
            for name, each in zip(names, batch.inputs, strict=True)
        )
        answer = BatchFinished(batch.number, started_ns, ended_ns, outputs, -1)
        batch.owner.finished(answer, started_ns - batch.arrived_ns, views, _nothing)
        if self.on_idle is not None and not self.open_batches:
            self.on_idle()


class EmulatedWorkers:
    """Worker servers on this machine that listen on free ports: `node-0` has the first `on_node` of them, and so on."""

    def __init__(self, count: int, on_node: int = 8) -> None:
        self.servers = [self._server(number, f"node-{number // on_node}") for number in range(count)]

    def _server(self, number: int, node: str) -> WorkerServer:
        name = f"emulated-{number}"
        partition = CpuPartition(name=name, cores=(0,))
        settings = WorkerSettings(partition=partition, node=node, limits=ArenaLimits(1, 16))
        server = WorkerServer(settings, listen("worker", "127.0.0.1", 0, BACKLOG))
        server.host = cast(WorkerHost, EmulatedHost(server))
        return server

    @property
    def urls(self) -> list[str]:
        """The addresses of all."""
        return [server.url for server in self.servers]

    async def start(self) -> None:
        """Accept sessions."""
        for server in self.servers:
            await server._grpc.start()

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(server.close() for server in self.servers))


def _nothing() -> None:
    """The memory of outputs goes with its last view."""


async def _serve(count: int, ready_file: Path) -> None:
    workers = EmulatedWorkers(count)
    await workers.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await asyncio.to_thread(_write, ready_file, json.dumps({"urls": workers.urls}))
    await stop.wait()
    await workers.close()


def _write(file: Path, text: str) -> None:
    scratch = file.with_suffix(".new")
    scratch.write_text(text)
    scratch.replace(file)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--ready-file", type=Path, required=True)
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(chosen.count, chosen.ready_file))


if __name__ == "__main__":
    main()
