"""One worker process as the gateway sees it: its start, its messages and its exit."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sluice.models.errors import PartitionError
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import BatchFinished, BatchRefused, BatchWithdrawn, FromWorker, RunBatch, ToWorker
from sluice.mps.isolation.launch import module_environment
from sluice.mps.isolation.pinning import array_library_environment, worker_environment
from sluice.mps.partitions.partition import Partition

OUTGOING_LIMIT = 1024
"""Messages queued for a worker that does not read. A worker with more is hung and is killed."""


class StartedProcess(NamedTuple):
    """A process that was started as a worker, and the gateway's end of its channel."""

    process: "subprocess.Popen[bytes]"
    socket: socket.socket


class WorkerProcess:
    """A running `sluice.mps.worker.main`; all methods belong to the event loop's thread.

    `on_message` gets every message with its descriptors, which the callback then owns. `on_exit` is called once with a
    sentence on the cause, after the process has exited and its last message was delivered. An answer to a batch that it
    was not sent, or has answered before, is not delivered, and the process is killed. `started` is a spare worker that
    becomes the worker; without one, a process is started. `stdout` is the descriptor
    for the output that libraries and models print (None: the gateway's own).
    """

    def __init__(
        self,
        partition: Partition,
        on_message: Callable[[FromWorker, tuple[int, ...]], None],
        on_exit: Callable[[str], None],
        stdout: int | None = None,
        started: StartedProcess | None = None,
    ) -> None:
        self.partition = partition
        self._on_message = on_message
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._unanswered: set[int] = set()
        self._reason = ""
        self.exited = asyncio.Event()
        self._process, ours = started or start_process(partition, stdout)
        self.pid = self._process.pid
        self._channel: Channel[FromWorker] = Channel(ours, FromWorker)
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._exited)
        self._loop.add_reader(self._channel.fileno(), self._receive)

    def send(self, message: ToWorker, fds: Sequence[int] = ()) -> None:
        """Send a message and copies of `fds` without blocking. A message to a process that has exited is dropped.

        Raises PartitionError when the message is too long.
        """
        if self._channel.closed:
            return
        packet = self._channel.encode(message)
        if isinstance(message, RunBatch):
            self._unanswered.add(message.batch)
        if not self._outgoing and self._sent(packet, fds):
            return
        if len(self._outgoing) >= OUTGOING_LIMIT:
            self.kill("the worker does not read its messages")
            return
        try:
            copies = tuple(os.dup(fd) for fd in fds)
        except OSError as error:
            self._cut_off(error)
            return
        if not self._outgoing:
            self._loop.add_writer(self._channel.fileno(), self._flush)
        self._outgoing.append((packet, copies))

    def deliver_pending(self) -> None:
        """Deliver messages that have arrived unread, before anything is called missing."""
        if not self._channel.closed:
            self._receive()

    def close(self, reason: str = "") -> None:
        """Close the channel: the worker exits after the batch that it is running. `reason` is as for `kill`."""
        self._reason = self._reason or reason
        if self._channel.closed:
            return
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._channel.close()
        while self._outgoing:
            _close_all(self._outgoing.popleft()[1])

    def kill(self, reason: str) -> None:
        """Send SIGKILL; `on_exit` gets the first `reason` of all calls."""
        self._reason = self._reason or reason
        if not self.exited.is_set():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _sent(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            return self._channel.try_send(packet, fds)
        except ConnectionError:
            return True  # The process is exiting; its pidfd reports that.
        except OSError as error:
            self._cut_off(error)
            return True

    def _cut_off(self, error: OSError) -> None:
        self.kill(f"messages cannot be sent to the worker: {error}")

    def _flush(self) -> None:
        while self._outgoing:
            packet, fds = self._outgoing[0]
            if not self._sent(packet, fds):
                return
            self._outgoing.popleft()
            _close_all(fds)
        self._loop.remove_writer(self._channel.fileno())

    def _receive(self) -> bool:
        """Deliver the messages that are there; returns whether there may be more."""
        count = 0
        try:
            for message, fds in self._channel.receive():
                count += 1
                self._check(message)
                self._on_message(message, fds)
                if self._channel.closed:  # by the callback
                    break
        except EOFError:
            self.close()
        except (PartitionError, msgspec.MsgspecError) as error:
            self.kill(f"the worker sent a message that cannot be used: {error}")
            self.close()  # Later messages may build on this one.
        return count > 0 and not self._channel.closed

    def _check(self, message: FromWorker) -> None:
        """Strike an answered batch off; raises PartitionError for an answer that is not due."""
        if not isinstance(message, BatchFinished | BatchRefused | BatchWithdrawn):
            return
        if message.batch not in self._unanswered:
            due = sorted(self._unanswered) or "none"
            raise PartitionError(f"an answer to batch {message.batch}; expected one of the batches sent to it: {due}")
        self._unanswered.remove(message.batch)

    def _exited(self) -> None:
        # Not until the end of the channel: a process that the worker started may hold it open.
        while not self._channel.closed and self._receive():
            pass
        self.close()
        self._loop.remove_reader(self._pidfd)
        status = self._process.wait()
        os.close(self._pidfd)
        self.exited.set()
        self._on_exit(self._reason or _describe(status))


async def wait_for_exit(processes: Iterable[asyncio.Event], timeout_s: float) -> bool:
    """Wait for the `exited` events of processes; returns whether all have exited in time."""
    try:
        async with asyncio.timeout(timeout_s):
            for gone in processes:
                await gone.wait()
    except TimeoutError:
        return False
    return True


def start_process(partition: Partition | None, stdout: int | None = None) -> StartedProcess:
    """Start a process that becomes the worker of a partition, or a spare one; raises OSError, and PartitionError."""
    if partition is None:
        arguments, environment = ["", "--spare"], array_library_environment()
    else:
        arguments, environment = [",".join(map(str, partition.cores))], worker_environment(partition)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            return StartedProcess(_spawn(arguments, environment, theirs, stdout), ours)
        except BaseException:
            ours.close()
            raise


def _spawn(
    arguments: Sequence[str], environment: Mapping[str, str], theirs: socket.socket, stdout: int | None
) -> "subprocess.Popen[bytes]":
    """Start the process in a session of its own, so that a terminal's interrupt reaches the gateway alone."""
    return subprocess.Popen(
        # -P: a directory that the gateway happens to be started in must not shadow modules.
        [sys.executable, "-P", "-m", "sluice.mps.worker.start", *arguments, "--socket", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={**module_environment(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        start_new_session=True,
    )


def _describe(status: int) -> str:
    if status < 0:
        return f"the worker was killed by {signal.Signals(-status).name}"
    return f"the worker exited with status {status}"


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
