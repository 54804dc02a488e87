"""A simulated machine: its clock, its kernel as far as it can refuse something, and its worker processes."""

import errno
import mmap
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sluice.models.units import NS_PER_MS
from sluice.mps.partitions.partition import Partition
from tests.support.gateway.simulation.faults import Fault, Faults
from tests.support.gateway.simulation.worker import SimulatedWorker
from tests.support.scheduling.virtual_time import VirtualAlarm, VirtualLoop

CORES = 4
FIRST_PID = 1000
TICKS_NS = (10 * NS_PER_MS, 200 * NS_PER_MS)
"""The steps of a coarse clock."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)


class SteppedClock:
    """The clock of a machine, which moves in steps of `tick_ns` of the loop's time."""

    def __init__(self, loop: VirtualLoop, tick_ns: int) -> None:
        self._loop = loop
        self._tick_ns = tick_ns

    def now_ns(self) -> int:
        """The time of the last step."""
        return self._loop.now_ns - self._loop.now_ns % self._tick_ns

    def shown_at_ns(self, time_ns: int) -> int:
        """The time of the loop at which the clock first shows a time."""
        return -(-time_ns // self._tick_ns) * self._tick_ns


class ClockAlarm(VirtualAlarm):
    """The runtime's timer on a stepped clock."""

    def __init__(self, loop: VirtualLoop, clock: SteppedClock) -> None:
        super().__init__(loop)
        self._clock = clock

    def arm(self, due_ns: int | None) -> None:
        super().arm(None if due_ns is None else self._clock.shown_at_ns(due_ns))


class FaultySocket(socket.socket):
    """The gateway's end of a channel, on which the kernel may refuse to send, or drop descriptors that arrive."""

    faults: Faults

    def send(self, data: Any, flags: int = 0, /) -> int:
        self._refuse()
        return super().send(data, flags)

    def sendmsg(self, *arguments: Any) -> int:
        self._refuse()
        return super().sendmsg(*arguments)

    def recvmsg_into(self, *arguments: Any) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        nbytes, control, flags, address = super().recvmsg_into(*arguments)
        if control and self.faults.happens(Fault.LOST_DESCRIPTOR):
            for _, _, data in control:
                os.close(int.from_bytes(data[:4], "little"))
            control, flags = [], flags | socket.MSG_CTRUNC
        return nbytes, control, flags, address

    def setsockopt(self, level: int, option: int, value: Any, *length: Any) -> None:
        if option == socket.SO_SNDBUF and self.faults.happens(Fault.SMALL_BUFFER):
            value = 1
        super().setsockopt(level, option, value, *length)

    def _refuse(self) -> None:
        if self.faults.happens(Fault.FULL_CHANNEL):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if self.faults.happens(Fault.BROKEN_SEND):
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


class Machine:
    """The machine of one gateway. `problems` are what no program on it should do; they are found by its checks."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.faults = Faults(seed)
        self.problems: list[str] = []
        self.workers: list[SimulatedWorker] = []
        self.launches = 0
        self.is_worker = False
        self.faults.active = True
        coarse = self.faults.happens(Fault.COARSE_CLOCK)
        self.faults.active = False
        tick_ns = self.faults.source[Fault.COARSE_CLOCK].choice(TICKS_NS) if coarse else 1
        self.clock = SteppedClock(loop, tick_ns)

    def alarm(self) -> ClockAlarm:
        return ClockAlarm(self.loop, self.clock)

    def launch(self, partition: Partition | None, stdout: int | None) -> SimulatedWorker:
        """Start the worker of a partition, or a spare one."""
        del stdout
        self._refuse(Fault.NO_PROCESS)
        self.launches += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = FaultySocket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, ours.detach())
        end.faults = self.faults
        worker = SimulatedWorker(self, FIRST_PID + self.launches, end, theirs, is_spare=partition is None)
        self.workers.append(worker)
        return worker

    @contextmanager
    def in_worker(self) -> Iterator[None]:
        """Count everything meanwhile as done by a worker."""
        self.is_worker = True
        try:
            yield
        finally:
            self.is_worker = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let this machine answer instead of the real one."""
        memfd_create, map_memory, dup = os.memfd_create, mmap.mmap, os.dup

        def create(name: str, flags: int = 0) -> int:
            self._refuse_memory()
            return memfd_create(name, flags)

        def mapped(*arguments: Any) -> mmap.mmap:
            self._refuse_memory()
            return map_memory(*arguments)

        def duplicate(fd: int) -> int:
            self._refuse(Fault.NO_DESCRIPTOR)
            return dup(fd)

        with (
            patch.object(os, "memfd_create", create),
            patch.object(mmap, "mmap", mapped),
            patch.object(os, "dup", duplicate),
            patch.object(os, "sched_getaffinity", lambda pid: set(range(CORES))),
        ):
            yield

    def _refuse_memory(self) -> None:
        self._refuse(Fault.WORKER_NO_SHARED_MEMORY if self.is_worker else Fault.NO_SHARED_MEMORY)

    def _refuse(self, fault: Fault) -> None:
        if self.faults.happens(fault):
            number = self.faults.source[fault].choice(_SHORTAGES)
            raise OSError(number, os.strerror(number))


def open_descriptors() -> Sequence[str]:
    """The targets of this process's descriptors, without the numbers of sockets and pipes."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0])
        except FileNotFoundError:  # that of the directory
            continue
    return sorted(found)
