"""The gateway's end of a session with a worker server."""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

import numpy as np

from sluice.gateway.http2.frames import END_HEADERS, HEADERS, PREFACE, ConnectionFault, StreamFault, frame
from sluice.gateway.http2.header_blocks import HeaderDecoder, encode_fields
from sluice.gateway.worker_protocol.address import split_address
from sluice.gateway.worker_protocol.framing import MessageDecoder, tensors_of, views_of
from sluice.gateway.worker_protocol.link import SessionLink
from sluice.gateway.worker_protocol.messages import (
    KEY_METADATA,
    SESSION,
    Finished,
    FromGateway,
    FromWorkerServer,
    Hello,
    Ping,
    RemoteRun,
    RunRefused,
    SessionRefusal,
    Welcome,
    Withdraw,
    Withdrawn,
    message_name,
)
from sluice.models.client_tls import ClientTls
from sluice.models.errors import ConfigError, PartitionError

OPEN_S = 5.0
"""The time for a worker server to answer a new session."""
PINGS_A_LEASE = 3
LONGEST_PING_S = 1.0
LATE_S = 0.05
"""A check that found nothing looks once more after this time: timers run before what has come is read."""
MOST_OUTPUT_BYTES = 1 << 30
MOST_UNSENT_BYTES = 256 << 20

_UNAUTHENTICATED = "16"
"""The status of gRPC for a call without the right key."""
_decoder = MessageDecoder(FromWorkerServer)


class Credentials(NamedTuple):
    """The credentials of a gateway: the key that it shares with worker servers, and the TLS (None: plain text).

    `server_name` is the name in the certificates of worker servers ("": the host of their address).
    """

    key: str = ""
    tls: ssl.SSLContext | None = None
    server_name: str = ""

    @classmethod
    def read(cls, key_file: str | None = None, tls: ClientTls | None = None, server_name: str = "") -> Self:
        """The credentials in these files. Raises ConfigError, which names the file."""
        context = None if tls is None else tls.context()
        if context is not None:
            context.set_alpn_protocols(["h2"])
        return cls(read_key(key_file), context, server_name)


def read_key(path: str | None) -> str:
    """The key in a file, without white space around it; "" without a file. Raises ConfigError."""
    if path is None:
        return ""
    try:
        key = Path(path).read_text("ascii").strip()
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the key file {path}: expected 1 to 1024 printable characters of ASCII") from error
    if not key or not key.isprintable() or len(key) > 1024:
        raise ConfigError(f"the key file {path}: expected 1 to 1024 printable characters of ASCII")
    return key


def _why(error: OSError | ValueError) -> str:
    """Why no connection was made, without the codes and addresses of libraries."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not use TLS, and this side does"
    if isinstance(error, ssl.SSLError | socket.gaierror) or not error.errno:
        return error.strerror or str(error) or "the other end closed the connection"
    return os.strerror(error.errno)


class SessionRefused(PartitionError):
    """A worker server refuses a session for a `reason`, such as that the gateway `holder` has the worker.

    Without `retry` it will refuse as long as nothing changes.
    """

    def __init__(self, message: str, reason: str, *, retry: bool = True, holder: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.retry = retry
        self.holder = holder


class _Unauthenticated(PartitionError):
    """The key, or its absence, is the reason why a session ended."""


class ClientSession:
    """An open session: the worker of `welcome` takes batches of this gateway alone.

    `on_message` gets every further message with the bytes of its tensors, which stay as they are as long as they are
    referred to. It raises PartitionError for a message that cannot be true, which ends the session. `on_closed` is
    called once, with a sentence, when the session has ended by itself. Nothing is called after `close`.
    """

    def __init__(
        self,
        url: str,
        hello: Hello,
        on_message: Callable[[FromWorkerServer, Sequence[memoryview]], None],
        on_closed: Callable[[str], None],
        memory: Callable[[int], memoryview | None] | None = None,
    ) -> None:
        self.url = url
        self.welcome: Welcome
        self._lease_s = hello.lease_s
        self._on_message = on_message
        self._on_closed = on_closed
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Welcome | SessionRefusal] = self._loop.create_future()
        self._is_open = self._is_closed = False
        self._end = ""
        self._early: list[tuple[Any, memoryview | None]] | None = []
        self._pings = 0
        self._batches: set[int] = set()
        """Those that have no answer yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._role = _ClientRole()
        self._link = SessionLink(
            _decoder, self._place, self._take, self._ended, MOST_OUTPUT_BYTES, MOST_UNSENT_BYTES, self._role
        )

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._link.unsent_bytes

    @property
    def received_bytes(self) -> int:
        """All bytes that have come."""
        return self._link.received_bytes

    def send(
        self,
        message: FromGateway,
        tensors: Sequence[memoryview | Sequence[memoryview]] = (),
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a message with the bytes of its tensors, without blocking. They stay as they are until `sent` is called.

        A tensor may come in pieces. Raises PartitionError when too many bytes wait to be sent, or when the session has
        ended; `sent` is not called then.
        """
        if self._link.over:
            raise PartitionError(f"the session with {self.url} has ended")
        if isinstance(message, Withdraw) and self._link.take_back(lambda each: _is_run(each, message.batch)):
            self._loop.call_soon(self._take, Withdrawn(message.batch), None)
            return
        self._link.send(message, tensors, sent)
        if isinstance(message, RemoteRun):
            self._batches.add(message.batch)

    def close(self) -> None:
        """End the session."""
        self._is_closed = True
        self._stop()
        self._link.close()

    # -- opening

    async def open(self, credentials: Credentials, hello: Hello, timeout_s: float) -> None:
        """Connect, and get the worker; raises as `open_session`."""
        host, port = split_address(self.url)
        try:
            await self._open(host, port, credentials, hello, timeout_s)
        except BaseException:
            self._is_closed = True
            self._stop()
            self._link.abort()
            raise

    async def _open(self, host: str, port: int, credentials: Credentials, hello: Hello, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                transport, _ = await self._loop.create_connection(
                    lambda: self._link,
                    host,
                    port,
                    ssl=credentials.tls,
                    server_hostname=(credentials.server_name or host) if credentials.tls is not None else None,
                )
                self._link.begin(transport, PREFACE)
                self._link.put(frame(HEADERS, END_HEADERS, 1, _request_block(self.url, credentials)))
                self._link.send(hello)
                answer = await self._answer
        except TimeoutError:
            reason = f"the worker server at {self.url} did not answer within {timeout_s:g} s"
        except (OSError, ValueError) as error:  # ValueError: no host has that name
            reason = f"the worker server at {self.url} cannot be reached: {_why(error)}"
        except _Unauthenticated as error:
            message = f"the worker server at {self.url} refused the session: {error}"
            raise SessionRefused(message, str(error), retry=False) from error
        except PartitionError as error:
            reason = f"the worker server at {self.url}: {error}"
        else:
            if isinstance(answer, Welcome) and self._link.over:
                reason = f"the worker server at {self.url} ended the session at once: {self._end}"
            elif isinstance(answer, Welcome):
                self.welcome = answer
                self._is_open = True
                self._ping()
                self._loop.call_soon(self._take_early)
                return
            else:
                message = f"the worker server at {self.url} refused the session: {answer.reason}"
                raise SessionRefused(message, answer.reason, retry=answer.retry, holder=answer.holder)
        raise PartitionError(reason)

    # -- the link

    def _place(self, message: Any, size: int) -> memoryview | None:
        if not isinstance(message, Finished) or message.batch not in self._batches:
            raise PartitionError(f"a {message_name(message)} came with tensors that were not asked for")
        memory = None if self._memory is None else self._memory(size)
        return np.empty(size, np.uint8).data if memory is None else memory

    def _take(self, message: Any, body: memoryview | None) -> None:
        if self._is_closed:
            return
        if isinstance(message, Welcome | SessionRefusal):
            if self._answer.done():
                raise PartitionError("the worker server answered the session twice")
            self._answer.set_result(message)
        elif not self._answer.done():
            raise PartitionError(f"a {message_name(message)} came before the worker server had answered the session")
        elif self._early is not None:
            self._early.append((message, body))
        else:
            if isinstance(message, Finished | RunRefused | Withdrawn):
                self._batches.discard(message.batch)
            self._on_message(message, () if not body else views_of(tensors_of(message), body))

    def _take_early(self) -> None:
        """Pass on the messages that came right behind the answer, before `open` had returned."""
        early, self._early = self._early or [], None
        try:
            for message, body in early:
                self._take(message, body)
        except PartitionError as error:
            self._link.fail(str(error))

    def _ended(self, reason: str) -> None:
        self._stop()
        self._end = reason
        if not self._is_open:
            if not self._answer.done():
                kind = _Unauthenticated if self._role.is_unauthenticated else PartitionError
                self._answer.set_exception(kind(reason))
        elif not self._is_closed:
            self._is_closed = True
            self._on_closed(reason)

    # -- the lease

    def _ping(self) -> None:
        self._pings += 1
        self._link.send_urgent(Ping(self._pings, time.monotonic_ns()))
        self._timer = self._loop.call_later(min(LONGEST_PING_S, self._lease_s / PINGS_A_LEASE), self._check, False)

    def _check(self, again: bool) -> None:
        silent_s = self._loop.time() - self._link.last_read_s
        if silent_s < self._lease_s:
            self._ping()
        elif not again:
            self._timer = self._loop.call_later(LATE_S, self._check, True)
        else:
            self._link.fail(f"nothing has come for {silent_s:.1f} s, expected an answer within {self._lease_s:g} s")

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def open_session(
    url: str,
    credentials: Credentials,
    hello: Hello,
    on_message: Callable[[FromWorkerServer, Sequence[memoryview]], None],
    on_closed: Callable[[str], None],
    memory: Callable[[int], memoryview | None] | None = None,
    timeout_s: float = OPEN_S,
) -> ClientSession:
    """Open a session with the worker server at `url` (`HOST:PORT`), on the running event loop; see `ClientSession`.

    `memory` gives the memory for the outputs of a batch; without it, or if it gives None, it is taken from the heap.
    Raises PartitionError with the reason if the worker server cannot be reached, and SessionRefused if it refused the
    session.
    """
    session = ClientSession(url, hello, on_message, on_closed, memory)
    await session.open(credentials, hello, timeout_s)
    return session


class _ClientRole:
    """The client's end of the stream."""

    def __init__(self) -> None:
        self._decoder: HeaderDecoder[None] = HeaderDecoder(16 << 10, 100, lambda fields: None)
        self.is_unauthenticated = False

    def on_headers(self, block: bytes, ended: bool) -> str | None:
        """Take the headers of the answer, or its status."""
        try:
            fields = dict(self._decoder.fields(block))
        except (ConnectionFault, StreamFault) as error:
            raise PartitionError(f"the headers of the answer cannot be read: {error}") from error
        http_status = fields.get(b":status", b"200")
        if http_status != b"200":
            return f"it answered with the HTTP status {http_status.decode(errors='replace')}; it is no worker server"
        if not ended:
            return None
        message = unquote(fields.get(b"grpc-message", b"").decode(errors="replace"))
        status = fields.get(b"grpc-status", b"").decode(errors="replace")
        self.is_unauthenticated = status == _UNAUTHENTICATED
        return message or f"it ended the call with the status {status}"

    def last_block(self, reason: str, *, is_fault: bool) -> bytes | None:
        """Clients end streams without headers."""
        return None


def _request_block(url: str, credentials: Credentials) -> bytes:
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"https" if credentials.tls is not None else b"http"),
        (b":path", SESSION.encode()),
        (b":authority", url.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    if credentials.key:
        fields.append((KEY_METADATA.encode(), credentials.key.encode()))
    return encode_fields(fields)


def _is_run(message: object, batch: int) -> bool:
    return isinstance(message, RemoteRun) and message.batch == batch
