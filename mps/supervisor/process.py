"""A process of ours as the gateway sees it, such as a worker: its start, its messages and its exit."""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from sluice.models.errors import PartitionError
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import FromWorker, ToWorker
from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.child import Child, Launch, launch_worker

OUTGOING_LIMIT = 1024
"""Packets queued for a process that does not read. One with more is hung and is killed."""

Outgoing = TypeVar("Outgoing")
Incoming = TypeVar("Incoming")


class MessageProcess(Generic[Outgoing, Incoming]):
    """A process that exchanges messages with us; all methods belong to the event loop's thread.

    `kind` is its name in sentences, and `incoming` the union of its messages. `on_message` gets every message with its
    descriptors, which the callback then owns. It raises PartitionError for a message that cannot be true, and the
    process is killed as for one that cannot be read. `on_exit` is called once with a sentence on the cause, after the
    process has exited and its last message was delivered. `on_writable` is called when all queued packets are sent.
    """

    def __init__(
        self,
        kind: str,
        child: Child,
        incoming: Any,
        on_message: Callable[[Incoming, tuple[int, ...]], None],
        on_exit: Callable[[str], None],
        on_writable: Callable[[], None] | None = None,
    ) -> None:
        self._kind = kind
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_writable = on_writable
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._reason = ""
        self.exited = asyncio.Event()
        self._child = child
        self.pid = child.pid
        self._channel: Channel[Incoming] = Channel(child.socket, incoming)
        self._loop.add_reader(self._child.fileno(), self._exited)
        self._loop.add_reader(self._channel.fileno(), self._receive)

    @property
    def is_blocked(self) -> bool:
        """True while packets wait until the process reads."""
        return bool(self._outgoing)

    def send(self, message: Outgoing, fds: Sequence[int] = ()) -> None:
        """Send a message and copies of `fds` without blocking. A message to a process that has exited is dropped.

        Raises PartitionError when the message is too long.
        """
        if self._channel.closed:
            return
        *before, last = self._channel.packets(message)
        for packet in before:
            self._send_packet(packet, ())
        self._send_packet(last, fds)

    def _send_packet(self, packet: bytes, fds: Sequence[int]) -> None:
        if not self._outgoing and self._sent(packet, fds):
            return
        if len(self._outgoing) >= OUTGOING_LIMIT:
            self.kill(f"the {self._kind} does not read its messages")
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
        """Close the channel: a worker exits after the batch that it is running. `reason` is as for `kill`."""
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
            self._child.kill()

    def _sent(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            return self._channel.try_send(packet, fds)
        except ConnectionError:
            return True  # The process is exiting, which is reported by itself.
        except OSError as error:
            self._cut_off(error)
            return True

    def _cut_off(self, error: OSError) -> None:
        self.kill(f"messages cannot be sent to the {self._kind}: {error}")

    def _flush(self) -> None:
        while self._outgoing:
            packet, fds = self._outgoing[0]
            if not self._sent(packet, fds):
                return
            self._outgoing.popleft()
            _close_all(fds)
        self._loop.remove_writer(self._channel.fileno())
        if self._on_writable is not None:
            self._on_writable()

    def _receive(self) -> bool:
        """Deliver the messages that are there; returns whether there may be more."""
        count = 0
        try:
            for message, fds in self._channel.receive():
                count += 1
                self._on_message(message, fds)
                if self._channel.closed:  # by the callback
                    break
        except EOFError:
            self.close()
        except PartitionError as error:
            self.kill(f"the {self._kind} sent a message that cannot be used: {error}")
            self.close()  # Later messages may build on this one.
        return count > 0 and not self._channel.closed

    def _exited(self) -> None:
        # Not until the end of the channel: a process that the worker started may hold it open.
        while not self._channel.closed and self._receive():
            pass
        self.close()
        self._loop.remove_reader(self._child.fileno())
        status = self._child.wait()
        self.exited.set()
        self._on_exit(self._reason or _describe(self._kind, status))


class WorkerProcess(MessageProcess[ToWorker, FromWorker]):
    """A running `sluice.mps.worker.main`. `launch` starts the process, and `stdout` is for it."""

    def __init__(
        self,
        partition: Partition,
        on_message: Callable[[FromWorker, tuple[int, ...]], None],
        on_exit: Callable[[str], None],
        stdout: int | None = None,
        launch: Launch = launch_worker,
    ) -> None:
        self.partition = partition
        super().__init__("worker", launch(partition, stdout), FromWorker, on_message, on_exit)


async def wait_for_exit(processes: Iterable[asyncio.Event], timeout_s: float) -> bool:
    """Wait for the `exited` events of processes; returns whether all have exited in time."""
    try:
        async with asyncio.timeout(timeout_s):
            for gone in processes:
                await gone.wait()
    except TimeoutError:
        return False
    return True


def _describe(kind: str, status: int) -> str:
    if status < 0:
        return f"the {kind} was killed by {signal.Signals(-status).name}"
    return f"the {kind} exited with status {status}"


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
