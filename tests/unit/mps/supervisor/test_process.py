"""A worker whose message cannot be used is killed, and its later messages are not read."""

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from sluice.models.errors import PartitionError
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import BatchWithdrawn, FromWorker, ToWorker
from sluice.mps.partitions.partition import CpuPartition, Partition
from sluice.mps.supervisor.process import WorkerProcess
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual


class PlayedChild:
    """A process that a test plays: `worker` is its end of the channel."""

    pid = 1

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.worker: Channel[ToWorker] = Channel(self.theirs, ToWorker)
        self._exit = os.eventfd(0)

    def fileno(self) -> int:
        return self._exit

    def kill(self) -> None:
        self.worker.close()
        os.eventfd_write(self._exit, 1)

    def wait(self) -> int:
        os.close(self._exit)
        return -9


def garbage(child: PlayedChild) -> None:
    child.theirs.send(b"?")


def surprise(child: PlayedChild) -> None:
    child.worker.send(BatchWithdrawn(7))


@pytest.mark.parametrize(
    ("say", "reason"),
    [(garbage, "channel: a packet is no message: "), (surprise, "batch 7 is not one of the worker's")],
)
def test_a_message_that_cannot_be_used_ends_the_worker(say: Callable[[PlayedChild], None], reason: str) -> None:
    child = PlayedChild()
    seen: list[FromWorker] = []
    reasons: list[str] = []

    def launch(partition: Partition | None, stdout: int | None) -> PlayedChild:
        return child

    def take(message: FromWorker, fds: tuple[int, ...]) -> None:
        seen.append(message)
        if message == BatchWithdrawn(7):
            raise PartitionError("batch 7 is not one of the worker's")

    async def main(loop: VirtualLoop) -> None:
        process = WorkerProcess(CpuPartition("cpu0", (0,)), take, reasons.append, launch=launch)
        child.worker.send(BatchWithdrawn(1))
        say(child)
        child.worker.send(BatchWithdrawn(2))
        async with asyncio.timeout(1):
            await process.exited.wait()

    run_virtual(main)
    assert BatchWithdrawn(1) in seen
    assert BatchWithdrawn(2) not in seen
    (why,) = reasons
    assert why.startswith(f"the worker sent a message that cannot be used: {reason}")
