"""A call as handlers see it: the part of the context of grpc.aio that they use."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import grpc

from sluice.gateway.grpc.transport.fields import check_fields
from sluice.models.errors import RequestError

Metadata = Iterable[tuple[str, str | bytes]]


class SplitMessage(NamedTuple):
    """A large message: its first bytes, and the others in memory that its receiver has provided."""

    head: bytes
    rest: memoryview

    @property
    def nbytes(self) -> int:
        """The size of the message."""
        return len(self.head) + len(self.rest)

    def joined(self) -> bytes:
        """The whole message, as a copy."""
        return b"".join((self.head, self.rest))


Message: TypeAlias = bytes | SplitMessage

MessageMemory: TypeAlias = Callable[[int, bytes], tuple[int, memoryview] | None]
"""memory(size, first): the size of the head, and memory for the rest, of a message of that size that begins with these
bytes, in which the whole head must be; None if the message is to be one piece."""


class Aborted(Exception):
    """Raised by a handler to end its call with a status, details and trailing metadata."""


class OwnConnection(NamedTuple):
    """The connection of a call that is alone on it, and all that has been agreed upon there.

    `rest` are bytes of the client that no one has looked at. The windows are those for what is sent to the client,
    whose frames have at most `frame_bytes`. `lost` is to be called when the transport is gone.
    """

    transport: Any
    metadata: Any
    stream_id: int
    rest: bytes
    initial_window: int
    send_window: int
    stream_window: int
    frame_bytes: int
    lost: Callable[[Exception | None], None]


HandOver: TypeAlias = Callable[[OwnConnection], None]
"""Takes a connection: it sends and reads from now on, and sets the protocol of the transport."""


class ServerCall(Protocol):
    """The context of a call.

    `on_cancelled` is called when the client cancels the call, its deadline passes or its connection is lost, unless the
    call has ended. Operations on a call that is `cancelled` or has ended have no effect. A call is `interrupted` when
    the server has stopped reading its messages, though there may be more.
    """

    serializer: Callable[[Any], bytes] | None
    on_cancelled: Callable[[], object] | None
    cancelled: bool
    interrupted: bool

    @property
    def method(self) -> str:
        """The path of the method, such as `/service/Method`."""
        ...

    def invocation_metadata(self) -> Any:
        """The client's metadata: pairs of name and value."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None without one."""
        ...

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata that is sent with the status."""
        ...

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status that is not OK."""
        ...

    async def write(self, message: Any) -> None:
        """Send one of several messages; does nothing once the client is gone."""
        ...

    def finish(self, answer: Any) -> None:
        """Send the only message, with the status OK."""
        ...

    def end(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """Send the status."""
        ...


def parsed(deserializer: Callable[[bytes], Any], message: bytes) -> Any:
    """A message as its deserializer gives it. Raises RequestError for one that cannot be parsed, or has too many parts.

    Then the client is at fault.
    """
    check_fields(message)
    try:
        return deserializer(message)
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(f"the message cannot be parsed: {error}") from error
