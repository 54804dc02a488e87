"""The commands of an MPS daemon, whichever protocol it speaks (types only)."""

from typing import Protocol

import msgspec

ACTIVE = "ACTIVE"
FAULT = "FAULT"
"""Status of a server whose GPU had a fatal error: it accepts no clients until all its clients have exited."""


class MpsServer(msgspec.Struct, frozen=True):
    """A server process, one for each user; `status` is the daemon's word for it, in capitals."""

    pid: int
    status: str


class MpsClient(msgspec.Struct, frozen=True):
    """A process with CUDA contexts on a server."""

    pid: int
    server: int


class MpsControl(Protocol):
    """One daemon of one device; every method has a time limit and raises ControlFailed when it fails."""

    def ping(self) -> None:
        """Return when the daemon answers."""
        ...

    def start_server(self) -> MpsServer:
        """Start a server for this user and wait until it is active, so that the first client need not."""
        ...

    def servers(self) -> tuple[MpsServer, ...]:
        """The running servers; there is none before the first client or `start_server`."""
        ...

    def clients(self) -> tuple[MpsClient, ...]:
        """The clients of all servers, by process id."""
        ...

    def terminate_client(self, client: MpsClient) -> None:
        """Destroy a client's contexts; only then may it be killed while it has work on the GPU."""
        ...

    def add_partition(self, device: str, chunks: int) -> str:
        """Set multiprocessors apart; returns the partition's name, which its clients need."""
        ...

    def free_chunks(self) -> int:
        """The number of chunks of multiprocessors that are in no partition."""
        ...

    def quit(self, timeout_s: float) -> None:
        """Stop the daemon and its servers, by force after `timeout_s`."""
        ...
