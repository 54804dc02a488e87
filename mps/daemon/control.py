"""What one MPS daemon is asked and told, whichever protocol it speaks (types only)."""

from typing import Protocol

import msgspec

ACTIVE = "ACTIVE"
FAULT = "FAULT"
"""Of a server whose GPU had a fatal error: it takes no clients until all that it has are gone."""


class MpsServer(msgspec.Struct, frozen=True):
    """A server process, one for each user; `status` as the daemon tells it, in capitals."""

    pid: int
    status: str


class MpsClient(msgspec.Struct, frozen=True):
    """A process with CUDA contexts on a server."""

    pid: int
    server: int


class MpsControl(Protocol):
    """One daemon of one device; every method is bounded in time and raises ControlFailed when it cannot."""

    def ping(self) -> None:
        """Return when the daemon answers."""
        ...

    def start_server(self) -> MpsServer:
        """Have a server for this user, and wait until it is active: the first client would have to."""
        ...

    def servers(self) -> tuple[MpsServer, ...]:
        """Those that run; none before the first client has come or `start_server`."""
        ...

    def clients(self) -> tuple[MpsClient, ...]:
        """The clients of all servers, by process id."""
        ...

    def terminate_client(self, client: MpsClient) -> None:
        """Destroy a client's contexts; only then it may be killed while it has work on the GPU."""
        ...

    def add_partition(self, device: str, chunks: int) -> str:
        """Set multiprocessors apart; returns the partition's name, which its clients have to be told."""
        ...

    def free_chunks(self) -> int:
        """How many chunks of multiprocessors are in none."""
        ...

    def quit(self, timeout_s: float) -> None:
        """End the daemon and its servers, by force after `timeout_s`."""
        ...
