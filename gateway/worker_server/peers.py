"""Reads files of models from the caches of other worker servers, and lets them read from this one."""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from sluice.gateway.worker_protocol.address import split_address
from sluice.gateway.worker_protocol.file_parts import FileReader
from sluice.gateway.worker_protocol.framing import MessageDecoder
from sluice.gateway.worker_protocol.messages import FETCH, KEY_METADATA, SERVICE, FilePart, FileWanted
from sluice.gateway.worker_server.settings import WorkerTls
from sluice.models.errors import PartitionError, RequestError

PART_S = 5.0
"""The time for a part of a file."""
MOST_CHANNELS = 16
"""Worker servers to which connections are kept."""

_decode_wanted = MessageDecoder(FileWanted).decode
_decode_part = MessageDecoder(FilePart).decode
_encode = msgspec.msgpack.Encoder().encode


class _Peer:
    """A connection to a worker server, and the number of calls that are under way."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.calls = 0


class Peers:
    """Other worker servers, which have the same `key` and certificates from the same authority."""

    def __init__(self, key: str = "", tls: WorkerTls | None = None) -> None:
        self._metadata = ((KEY_METADATA, key),) if key else ()
        self._tls = tls
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    async def ask(self, url: str, wanted: FileWanted) -> FilePart:
        """A part of a file from the worker server at `url`; raises PartitionError."""
        try:
            peer = await self._peer(url)
            try:
                call = peer.channel.unary_unary(f"/{SERVICE}/{FETCH}")
                answer = await call(_encode(wanted), timeout=PART_S, metadata=self._metadata)
            finally:
                peer.calls -= 1
        except grpc.aio.AioRpcError as error:
            raise PartitionError(f"{error.code().name}: {error.details()}") from error
        except OSError as error:
            raise PartitionError(f"its certificates cannot be read: {error}") from error
        part: FilePart = _decode_part(answer)
        return part

    async def close(self) -> None:
        """Close all connections."""
        peers = list(self._peers.values())
        self._peers.clear()
        for peer in peers:
            await peer.channel.close()

    async def _peer(self, url: str) -> _Peer:
        """The connection for one more call; closes the one that was not used for the longest time if there are many."""
        split_address(url)
        credentials = None
        if url not in self._peers and self._tls is not None:
            credentials = await asyncio.to_thread(_credentials, self._tls)
        peer = self._peers.get(url)
        if peer is None:
            peer = self._peers[url] = _Peer(self._open(url, credentials))
        self._peers.move_to_end(url)
        peer.calls += 1
        if len(self._peers) > MOST_CHANNELS:
            # Closing one cancels its calls, and with them the load that made them.
            unused = next((name for name, each in self._peers.items() if not each.calls), None)
            if unused is not None:
                await self._peers.pop(unused).channel.close()
        return peer

    def _open(self, url: str, credentials: grpc.ChannelCredentials | None) -> Any:
        options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
        if self._tls is None or credentials is None:
            return grpc.aio.insecure_channel(url, options)
        if self._tls.server_name:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(url, credentials, options)


def fetch_method(reader: FileReader) -> dict[str, Any]:
    """The method of the service by which others read from this worker server."""

    async def fetch(request: bytes, context: object) -> FilePart:
        del context
        try:
            wanted = _decode_wanted(request)
        except PartitionError as error:
            raise RequestError(str(error)) from error
        return await reader.answer(wanted)

    return {FETCH: grpc.unary_unary_rpc_method_handler(fetch, response_serializer=_encode)}


def _credentials(tls: WorkerTls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        Path(tls.ca).read_bytes(), Path(tls.private_key).read_bytes(), Path(tls.certificate).read_bytes()
    )
