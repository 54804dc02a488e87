"""The sessions with worker servers, as the executor uses them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from sluice.gateway.worker_protocol.messages import FromGateway, FromWorkerServer, Welcome

OnMessage = Callable[[FromWorkerServer, Sequence[memoryview]], None]
"""Gets a message with the bytes of its tensors; raises PartitionError for one that cannot be true."""


class WorkerSession(Protocol):
    """An open session: the worker of `welcome` takes batches of this gateway alone (see the client)."""

    welcome: Welcome

    def send(self, message: FromGateway, tensors: Sequence[Sequence[memoryview]] = ()) -> None:
        """Send a message with the bytes of its tensors in pieces, which stay as they are until it is answered.

        Raises PartitionError when too many bytes wait to be sent, or when the session has ended.
        """
        ...

    def close(self) -> None:
        """End the session; nothing is reported any more."""
        ...


OpenSession = Callable[[str, str, int, OnMessage, Callable[[str], None]], Awaitable[WorkerSession]]
"""Opens a session with the worker server at an address, whose partition is of that kind. The number is that of the
workers of the class that the gateway has already.

The last argument is called when the session ends by itself.

Raises PartitionError with the reason, and SessionRefused if the worker server refuses the session.
"""
