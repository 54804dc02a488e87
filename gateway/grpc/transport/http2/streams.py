"""The state of a stream, as far as HTTP/2 knows it."""

from abc import ABC, abstractmethod
from collections import deque


class Stream(ABC):
    """A stream that a client has opened. A subclass gets what comes on it.

    `remote_ended` and `ended` say that the client and the server have sent the last frame. `send_window` and
    `receive_window` are bytes that may still be sent and received; `uncredited` bytes have been received and not been
    added to the window again. `declared_bytes` is what is left of the client's `content-length`, or -1. `unsent` holds
    data that waits for room in a window or in the transport, of which `sent_bytes` have been sent, and `trailers` the
    header blocks that follow it, of status and metadata.
    """

    __slots__ = (
        "declared_bytes",
        "ended",
        "has_headers",
        "id",
        "receive_window",
        "remote_ended",
        "send_window",
        "sent_bytes",
        "trailers",
        "uncredited",
        "unsent",
        "unsent_bytes",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int, remote_ended: bool) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = receive_window
        self.remote_ended = remote_ended
        self.ended = self.has_headers = False
        self.uncredited = self.unsent_bytes = self.sent_bytes = 0
        self.declared_bytes = -1
        self.unsent: deque[memoryview] | None = None
        self.trailers: tuple[bytes | None, bytes] | None = None

    @abstractmethod
    def receive(self, data: bytes, ended: bool) -> None:
        """Take data. It is the last if the client has `ended` the stream. Raises StreamFault."""

    def memory(self) -> memoryview | None:
        """Memory for the data that comes next; None if the stream takes it as bytes."""
        return None

    def receive_direct(self, size: int, ended: bool) -> None:
        """Take `size` bytes of data, which are in that memory; otherwise as `receive`."""
        raise NotImplementedError

    @abstractmethod
    def cancel(self) -> None:
        """The client has reset the stream, or the connection is lost."""

    def wants_data(self) -> bool:
        """True if bytes that have been received may be added to the window again."""
        return True

    def on_sent(self) -> None:  # noqa: B027 (most streams need not know)
        """Nothing is `unsent` any longer."""
