"""The method by which anybody with the key asks a worker server about itself, without a lease."""

import re
import time
from typing import NamedTuple

import grpc
import msgspec

from sluice.gateway.worker_protocol.messages import KEY_METADATA, SERVICE
from sluice.models.client_tls import ClientTls
from sluice.models.errors import PartitionError

METHOD = "About"
_WORDS = (
    (re.compile(r"^failed to connect to all addresses; last error: \w+: \S+: (Failed to [\w ]+: )?"), ""),
    (re.compile(r"^errors resolving \S+: .*: ([^:\]]+)\]?$"), r"its host cannot be looked up: \1"),
    (re.compile(r"^Tls handshake failed .*OPENSSL_internal:(\w+).*$"), r"the TLS handshake failed: \1"),
    (re.compile(r"^Custom verification check failed with error: \w+: "), ""),
)
"""The words of gRPC around the reason that no connection was made, and what stands for them."""
MOST_PADDING = 16 << 20
"""The most bytes that a question or an answer is padded with."""
LINK_BYTES = 4 << 20
"""Bytes by which the bandwidth of a way is measured."""
_ROUND_TRIPS, _TRANSFERS = 5, 2


class AskAbout(msgspec.Struct, frozen=True, array_like=True):
    """A question, with bytes of padding that count only on the way, and as many of them in the answer as are asked."""

    padding: bytes = b""
    answer_padding: int = 0


class CacheRoom(msgspec.Struct, frozen=True, array_like=True):
    """The cache of models: its bytes now and at most, and the bytes that are free on its disk."""

    directory: str
    used_bytes: int
    max_bytes: int
    free_bytes: int


class About(msgspec.Struct, frozen=True, array_like=True):
    """A worker server. `clock_ns` is the time of its machine since 1970, and `state` a sentence, "" if it can work.

    `holder` is the gateway that has the lease ("": none), and `cores` are those of the worker process.
    """

    version: str
    name: str
    node: str
    kind: str
    state: str
    holder: str
    clock_ns: int
    cores: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    cache: CacheRoom | None = None
    padding: bytes = b""


class Survey(NamedTuple):
    """The answer of the worker server at `url`, and its distance.

    The clock there is `clock_ahead_ns` ahead of ours, within half of the round trip.
    """

    url: str
    about: About
    round_trip_ns: int
    clock_ahead_ns: int
    bytes_per_s_to: float
    bytes_per_s_from: float


def survey(url: str, key: str, tls: ClientTls | None, server_name: str = "", timeout_s: float = 5.0) -> Survey:
    """Ask the worker server at `url`, and measure the way to it; blocks for some round trips and 16 MiB.

    Raises PartitionError with the reason if there is no answer.
    """
    with _channel(url, tls, server_name) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{METHOD}", msgspec.msgpack.encode, _decode)
        metadata = ((KEY_METADATA, key),) if key else ()
        give_up_s = time.monotonic() + timeout_s

        def ask(question: AskAbout) -> _Timed:
            asked_ns, began_ns = time.time_ns(), time.monotonic_ns()
            about = call(question, timeout=max(give_up_s - time.monotonic(), 0), metadata=metadata)
            took_ns = time.monotonic_ns() - began_ns
            return _Timed(took_ns, about.clock_ns - asked_ns - took_ns // 2, about)

        try:
            ask(AskAbout())  # which connects
            quickest = min((ask(AskAbout()) for _ in range(_ROUND_TRIPS)), key=lambda each: each.took_ns)
            to_ns = min(ask(AskAbout(bytes(LINK_BYTES))).took_ns for _ in range(_TRANSFERS))
            from_ns = min(ask(AskAbout(b"", LINK_BYTES)).took_ns for _ in range(_TRANSFERS))
        except grpc.RpcError as error:
            raise PartitionError(_reason(error)) from error
        except msgspec.MsgspecError as error:
            raise PartitionError(f"its answer cannot be read: {error}") from error
    # A round trip that is as long as a transfer was disturbed, and says nothing of it.
    ways = [LINK_BYTES * 1e9 / (ns - quickest.took_ns if ns > 2 * quickest.took_ns else ns) for ns in (to_ns, from_ns)]
    return Survey(url, quickest.about, quickest.took_ns, quickest.ahead_ns, *ways)


class _Timed(NamedTuple):
    took_ns: int
    ahead_ns: int
    about: About


def _channel(url: str, tls: ClientTls | None, server_name: str) -> grpc.Channel:
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", 2 * MOST_PADDING),
        ("grpc.enable_http_proxy", 0),
    ]
    if tls is None:
        return grpc.insecure_channel(url, options)
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    authorities, private_key, certificate = tls.pem()
    return grpc.secure_channel(url, grpc.ssl_channel_credentials(authorities, private_key, certificate), options)


def _decode(data: bytes) -> About:
    return msgspec.msgpack.decode(data, type=About)


def _reason(error: grpc.RpcError) -> str:
    """The sentence for an error of gRPC."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return details
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "it is no worker server, or one of another version"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "it did not answer in time"
    for words, plain in _WORDS:
        details = words.sub(plain, details)
    return f"it cannot be reached: {details}"
