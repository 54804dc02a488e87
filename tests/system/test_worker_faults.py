"""Real worker processes that die, stall or do not come up."""

import ctypes
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import InputTensor, RunBatch, Segment, WorkerReady
from tests.support.gateway.processes import alive, memory_files
from tests.support.gateway.workers import Gateway, direct, held, in_loop, model, own_memory_files, rows, serving, worker
from tests.support.models.onnx_models import save_mlp


def socket_of(pid: int) -> int:
    """The number of a worker's socket, in the worker."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return int(arguments[arguments.index(b"--socket") + 1])


def descriptor_flags(pid: int, number: int) -> int:
    return int(Path(f"/proc/{pid}/fdinfo/{number}").read_text().split()[3], 8)


def take_descriptor(pid: int, number: int) -> int:
    """A copy, in this process, of another process's descriptor (pidfd_getfd)."""
    pidfd = os.pidfd_open(pid)
    try:
        copy: int = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, number, 0)
    finally:
        os.close(pidfd)
    assert copy >= 0, os.strerror(ctypes.get_errno())
    return copy


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return save_mlp(tmp_path / "mlp.onnx", (8, 16, 3))


@pytest.mark.timed
@in_loop
async def test_a_killed_worker_is_replaced_within_two_seconds_without_measuring_again(mlp: Path) -> None:
    gateway = Gateway([worker(model(mlp))])
    gateway.supervisor.start()
    first = await gateway.next()
    send = gateway.workers["cpu0"].send
    send(RunBatch(1, "m:1", (gateway.place(rows(4)),)))
    kept = (await gateway.next()).outputs[0]
    before = gateway.read(kept)

    killed_at = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    assert await gateway.next() == "cpu0: the worker was killed by SIGKILL"
    assert not alive(first.pid)
    second = await gateway.next()
    assert time.monotonic() - killed_at < 2.0
    assert second.pid != first.pid
    assert [(each.key, each.table) for each in second.models] == [(each.key, each.table) for each in first.models]

    # What the dead worker made is still there, for the gateway and as an input of its successor.
    np.testing.assert_array_equal(gateway.read(kept), before)
    assert gateway.output_regions["cpu0"] != kept.region
    x = InputTensor("x", DataType.FP32, (1, 8), (Segment(kept.region, kept.offset, 32),))
    send(RunBatch(2, "m:1", (x,)))  # To the worker that is gone: dropped.
    gateway.workers["cpu0"].send(RunBatch(3, "m:1", (x,)))
    done = await gateway.next()
    assert done.batch == 3
    np.testing.assert_array_equal(gateway.read(done.outputs[0]), direct(mlp, before.reshape(-1)[:8].reshape(1, 8)))
    gateway.supervisor.drop_region(kept.region)
    await gateway.supervisor.drain()
    assert own_memory_files() == []


@in_loop
async def test_a_worker_that_is_not_ready_in_time_is_given_up_and_started_again(tmp_path: Path) -> None:
    # Not just one that is slow: while this process gets no core, a worker would get ready.
    gateway = Gateway([worker(held(tmp_path / "held", "m:1", at_load=True))], ready_timeout_s=0.01)
    gateway.supervisor.start()
    assert await gateway.next() == "cpu0: not ready within 0.01 s"
    assert await gateway.next() == "cpu0: not ready within 0.01 s"
    await gateway.supervisor.drain()


@in_loop
async def test_regions_that_come_and_go_while_a_worker_loads_do_not_burden_it(mlp: Path) -> None:
    gateway = Gateway([worker(model(mlp))])
    gateway.supervisor.start()
    for _ in range(20_000):
        gateway.supervisor.drop_region(gateway.supervisor.share_region(Region.create("sluice-passing", 4096)))
    assert memory_files(os.getpid(), "sluice-passing") == []
    gateway.inputs = Region.create("sluice-test-inputs", 1 << 20)
    gateway.input_region = gateway.supervisor.share_region(gateway.inputs)
    assert isinstance(await gateway.next(), WorkerReady)
    gateway.workers["cpu0"].send(RunBatch(1, "m:1", (gateway.place(rows(1)),)))
    assert (await gateway.next()).batch == 1
    await gateway.supervisor.drain()


@in_loop
async def test_a_worker_that_cannot_be_sent_a_region_is_replaced(mlp: Path) -> None:
    async with serving(worker(model(mlp))) as gateway:
        process = gateway.workers["cpu0"]
        os.kill(process.pid, signal.SIGSTOP)
        for batch in range(100):  # More than the socket holds.
            process.send(RunBatch(batch, "m" * 50_000, ()))
        region = Region.create("sluice-test", 4096)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            gateway.supervisor.share_region(region)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        reason = "cpu0: messages cannot be sent to the worker: [Errno 24] Too many open files"
        assert await gateway.next() == reason
        assert isinstance(await gateway.next(), WorkerReady)


@in_loop
async def test_the_end_of_a_worker_is_seen_though_its_socket_is_held_open(mlp: Path) -> None:
    async with serving(worker(model(mlp))) as gateway:
        pid = gateway.workers["cpu0"].pid
        number = socket_of(pid)
        assert descriptor_flags(pid, number) & os.O_CLOEXEC  # What a backend starts does not have it ...
        held = take_descriptor(pid, number)  # ... but what it forks does.
        os.kill(pid, signal.SIGKILL)
        assert await gateway.next() == "cpu0: the worker was killed by SIGKILL"
        assert isinstance(await gateway.next(), WorkerReady)
        os.close(held)
