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


class Peers:
    """Other worker servers, which have the same `key` and certificates from the same authority."""

    def __init__(self, key: str = "", tls: WorkerTls | None = None) -> None:
        self._metadata = ((KEY_METADATA, key),) if key else ()
        self._tls = tls
        self._channels: OrderedDict[str, Any] = OrderedDict()

    async def ask(self, url: str, wanted: FileWanted) -> FilePart:
        """A part of a file from the worker server at `url`; raises PartitionError."""
        try:
            channel = await self._channel(url)
            call = channel.unary_unary(f"/{SERVICE}/{FETCH}")
            answer = await call(_encode(wanted), timeout=PART_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise PartitionError(f"{error.code().name}: {error.details()}") from error
        except OSError as error:
            raise PartitionError(f"its certificates cannot be read: {error}") from error
        part: FilePart = _decode_part(answer)
        return part

    async def close(self) -> None:
        """Close all connections."""
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def _channel(self, url: str) -> Any:
        channel = self._channels.get(url)
        if channel is None:
            split_address(url)
            credentials = None if self._tls is None else await asyncio.to_thread(_credentials, self._tls)
            if self._tls is None or credentials is None:
                channel = grpc.aio.insecure_channel(url)
            else:
                name = self._tls.server_name
                options = [("grpc.ssl_target_name_override", name)] if name else None
                channel = grpc.aio.secure_channel(url, credentials, options)
            self._channels[url] = channel
            if len(self._channels) > MOST_CHANNELS:
                await self._channels.popitem(last=False)[1].close()
        self._channels.move_to_end(url)
        return channel


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
