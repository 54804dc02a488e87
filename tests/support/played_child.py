"""A child process that a test plays."""

import os
import socket
from typing import Any, Generic, TypeVar

from sluice.mps.ipc.channel import Channel

M = TypeVar("M")


class PlayedChild(Generic[M]):
    """A child of ours without a process (see `Child`); `exit` ends it, with the exit status `status`.

    It is sent messages of the type `incoming`.
    """

    pid = 1

    def __init__(self, incoming: Any, status: int = 0) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel: Channel[M] = Channel(theirs, incoming)
        self._gone, self._exit = os.pipe()
        self._status = status

    def fileno(self) -> int:
        return self._gone

    def kill(self) -> None:
        self.exit()

    def exit(self) -> None:
        if not self.channel.closed:
            self.channel.close()
            os.close(self._exit)

    def wait(self) -> int:
        os.close(self._gone)
        return self._status
