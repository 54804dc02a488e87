"""The files of the models of a worker server: got before a model is loaded, held until the worker has dropped it."""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sluice.gateway.observability.logs import log
from sluice.gateway.worker_protocol.file_parts import AskFile, FileReader, read_by_parts
from sluice.gateway.worker_protocol.messages import FilePart, FileWanted, RemoteModel
from sluice.gateway.worker_server.peers import Peers
from sluice.models.distribution.cache import HeldFiles, ModelCache
from sluice.models.distribution.file_set import FileSet
from sluice.models.distribution.sources import GATEWAY_BYTES_PER_S, FileSource, StreamSource, UriSource
from sluice.models.errors import ConfigError, PartitionError, ServingError

logger = logging.getLogger(__name__)

MOST_PEERS = 4
"""Worker servers that are asked for the files of a model."""
_MIB = 1 << 20


class ModelFiles:
    """The files of models in a cache of `cache_mb` MiB at `directory` (None: the default place), by the model's key.

    `url` is the address of the worker server itself.
    """

    def __init__(self, directory: str | None, cache_mb: int, peers: Peers, url: str) -> None:
        self.cache = ModelCache(Path(directory) if directory is not None else default_cache(), cache_mb * _MIB)
        self._is_chosen = directory is not None
        self._peers = peers
        self._url = url
        self._uri = UriSource()
        self._held: dict[str, list[HeldFiles]] = {}
        self.reader = FileReader(self.cache.open)
        """Reads what others ask for."""

    async def ensure(self, model: RemoteModel, files: FileSet, gateway: AskFile) -> str:
        """Have the files of a model on this machine, and hold them; returns the path of the model's own file.

        Raises FilesUnavailable.
        """
        others = [url for url in model.peers if url != self._url][:MOST_PEERS]
        sources: list[FileSource] = [
            StreamSource(f"worker server {url:.80}", read_by_parts(partial(self._peers.ask, url))) for url in others
        ]
        if files.uri:
            sources.append(self._uri)
        sources.append(StreamSource("the gateway", read_by_parts(gateway), GATEWAY_BYTES_PER_S))
        held = await self.cache.ensure(files, sources)
        for source, nbytes in held.received.items():
            log(logger, logging.INFO, "files received", model=model.key, source=source, bytes=nbytes)
        self._held.setdefault(model.key, []).append(held)
        return str(held.model)

    def prepare(self) -> None:
        """Make the cache; blocks. Raises ConfigError if its directory was chosen and cannot be used."""
        try:
            self.cache.prepare()
        except OSError as error:
            reason = f"cache: {self.cache.root} cannot be used: {error.strerror}; expected a directory to write to"
            if self._is_chosen:
                raise ConfigError(reason) from error
            log(logger, logging.WARNING, "no models from other machines", reason=reason)

    def keep_newest(self, key: str) -> None:
        """Let go what a model was loaded from before."""
        for held in self._held.get(key, [])[:-1]:
            held.release()
        if key in self._held:
            del self._held[key][:-1]

    def release(self, key: str) -> None:
        """Let all files of a model go."""
        for held in self._held.pop(key, ()):
            held.release()

    async def close(self) -> None:
        """Let everything go, and close connections."""
        for key in list(self._held):
            self.release(key)
        await self._peers.close()


class GatewayFiles:
    """The questions for files of one session; `send` sends one to the gateway, and raises PartitionError."""

    def __init__(self, send: Callable[[FileWanted], None]) -> None:
        self._send = send
        self._asked: dict[int, asyncio.Future[FilePart]] = {}
        self._number = 0

    async def ask(self, wanted: FileWanted) -> FilePart:
        """The gateway's answer; raises PartitionError."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[FilePart] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send(FileWanted(number, wanted.digest, wanted.path, wanted.offset, wanted.nbytes))
            return await answer
        finally:
            del self._asked[number]

    def answered(self, part: FilePart) -> None:
        """Take an answer; one that nobody waits for is dropped."""
        answer = self._asked.get(part.number)
        if answer is not None and not answer.done():
            answer.set_result(part)

    def close(self, reason: str) -> None:
        """The session is over."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(PartitionError(reason))


class FileLoads:
    """The loads of a session whose files are still to come, by the model's key.

    `have` is called with the model and its path once its files are here, `failed` with the reason if they are not.
    """

    def __init__(
        self,
        files: ModelFiles,
        gateway: GatewayFiles,
        have: Callable[[RemoteModel, str], None],
        failed: Callable[[RemoteModel, str], None],
    ) -> None:
        self._files = files
        self._gateway = gateway
        self._have = have
        self._failed = failed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tasks

    def begin(self, model: RemoteModel, files: FileSet) -> None:
        """Get the files of a model; an earlier load of that key is given up."""
        self.give_up(model.key)
        self._tasks[model.key] = asyncio.create_task(self._load(model, files))

    def give_up(self, key: str) -> bool:
        """End a load; returns false if there is none."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        return task is not None

    def close(self) -> None:
        """End all loads."""
        for key in list(self._tasks):
            self.give_up(key)

    async def _load(self, model: RemoteModel, files: FileSet) -> None:
        try:
            path = await self._files.ensure(model, files, self._gateway.ask)
        except (ServingError, OSError) as error:
            del self._tasks[model.key]
            self._failed(model, str(error))
        except Exception as error:
            logger.exception("the files of %s could not be got", model.key)
            del self._tasks[model.key]
            self._failed(model, f"its files could not be got: internal error: {error}")
        else:
            del self._tasks[model.key]
            self._have(model, path)


def default_cache() -> Path:
    """The cache of this user."""
    home = os.environ.get("HOME") or tempfile.gettempdir()
    return Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache", "sluice", "models")
